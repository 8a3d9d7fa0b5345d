"""Datagrams received, added up, copied and counted by BPF programs in the kernel."""
