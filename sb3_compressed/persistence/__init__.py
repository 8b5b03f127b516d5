"""Saving, resuming, resizing and repairing replay buffers; :mod:`sb3_compressed.storage` does the input and output."""
