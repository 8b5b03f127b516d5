"""The tests of SB3 and sb3-contrib against the compressed buffers."""
