"""Tests of the callbacks; a package, so that programs of the tests can import them."""
