"""Tests of the storage; a package, because mypy requires one for files of the same name in two folders."""
