"""Mini-batches of sampled neighbours, and the CPU and GPUs of a machine together."""
