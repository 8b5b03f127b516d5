"""Measure buffers on real observations, for the command ``advise`` and the scripts in ``benchmarks/``.

An environment is recorded once (:mod:`~frame_recording`). Every buffer gets its own process
(:mod:`~sb3_compressed.benchmarking.runner`), in which :mod:`~measure_replay` or
:mod:`~measure_rollout` adds the recording to it. None of this is public.
"""
