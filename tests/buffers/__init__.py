"""Tests of the buffers; a package, because mypy requires one for files of the same name in two folders."""
