"""Recordings of what a policy sees and does: episodes, videos and datasets to be."""

from sb3_compressed.recording.playing import record_episodes
from sb3_compressed.recording.record_buffer import RecordBuffer
from sb3_compressed.recording.variants import DummyRecordBuffer, FramelessRecordBuffer

__all__ = ["DummyRecordBuffer", "FramelessRecordBuffer", "RecordBuffer", "record_episodes"]
