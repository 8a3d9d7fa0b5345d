"""Noise on updates: sums of which no train node's own loss can be read."""
