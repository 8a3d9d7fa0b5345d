"""Streams of bytes between two machines, one transport for each scheme."""
