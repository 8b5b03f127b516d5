"""Tests of distributed buffers; a package, so that they can share helpers and Ray's workers can import these."""
