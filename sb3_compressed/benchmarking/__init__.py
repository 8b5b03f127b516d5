"""What a buffer costs, measured on real observations: for the command line, and for the scripts in ``benchmarks/``.

An environment is recorded once (:mod:`~sb3_compressed.benchmarking.frame_recording`). Every buffer plays the recording
in a process of its own (:mod:`~sb3_compressed.benchmarking.runner`), where
:mod:`~sb3_compressed.benchmarking.replay_benchmark` or :mod:`~sb3_compressed.benchmarking.rollout_benchmark` measure
it. Nothing here is part of the public interface.
"""
