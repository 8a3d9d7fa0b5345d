"""Looks at a machine and says what keeps it from training."""
