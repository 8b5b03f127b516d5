"""The kinds of records in a segment, numbers that are stored in each record."""

from __future__ import annotations

__all__ = ["CODEC", "COMMIT", "MANIFEST", "PATCHES", "SLOTS"]

#: The metadata of a store, the first record of each snapshot; see ``manifest.py``.
MANIFEST = 1
#: A codec, and slots with their payloads; see ``slot_log.py``.
CODEC, SLOTS = 2, 3
#: Parts of a commit; see ``commit_format.py``.
PATCHES, COMMIT = 4, 5
