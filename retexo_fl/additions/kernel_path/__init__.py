"""Vectors as datagrams that are added up where they arrive, in the kernel or in user space."""
