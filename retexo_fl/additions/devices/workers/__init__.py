"""Work shared among the CPU and the GPUs of one machine; begin at ``unified.py``."""
