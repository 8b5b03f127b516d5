"""Tests of the callbacks; a package, since mypy wants two files of one name in two of them."""
