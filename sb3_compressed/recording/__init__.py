"""Recordings of a policy's steps, from which episodes, GIFs and datasets are made."""

from sb3_compressed.recording.episode_recording import record_episodes
from sb3_compressed.recording.record_buffer import FramelessRecordBuffer, RecordBuffer

__all__ = ["FramelessRecordBuffer", "RecordBuffer", "record_episodes"]
