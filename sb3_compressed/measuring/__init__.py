"""What a buffer costs, measured on real observations: for the command line, and for the scripts in ``benchmarks/``.

An environment is recorded once (:mod:`~sb3_compressed.measuring.recording`). Every buffer plays the recording in a
process of its own (:mod:`~sb3_compressed.measuring.turns`), where :mod:`~sb3_compressed.measuring.replay` or
:mod:`~sb3_compressed.measuring.rollout` measure it. Nothing here is part of the library's interface.
"""
