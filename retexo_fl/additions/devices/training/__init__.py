"""One client's training by mini-batches, and on several devices."""
