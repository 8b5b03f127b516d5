"""Compiled helpers, their cache, and checksums."""
