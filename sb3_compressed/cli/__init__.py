"""The command line, ``sb3-compressed`` or ``python -m sb3_compressed``: a file for each command."""

from sb3_compressed.cli.app import main

__all__ = ["main"]
