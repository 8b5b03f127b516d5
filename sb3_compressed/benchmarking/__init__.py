"""Short trainings with different buffers, for the command ``advise``. None of this is public.

Every training (:mod:`~sb3_compressed.benchmarking.training_run`) gets its own process
(:mod:`~sb3_compressed.benchmarking.time_slices`). The scripts in ``benchmarks/`` share some of it.
"""
