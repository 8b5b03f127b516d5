"""Tests of the persistence; a package, because mypy requires one for files of the same name in two folders."""
