"""Measure buffers on real observations, for the command ``advise`` and the scripts in ``benchmarks/``.

An environment is recorded once (:mod:`~sb3_compressed.benchmarking.frame_recording`). Every buffer gets its own process
(:mod:`~sb3_compressed.benchmarking.runner`), in which :mod:`~sb3_compressed.benchmarking.replay_benchmark` or
:mod:`~sb3_compressed.benchmarking.rollout_benchmark` adds the recording to it. None of this is public.
"""
