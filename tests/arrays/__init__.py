"""Tests of the arrays; a package, so that they can share helpers and mypy accepts files of the same name."""
