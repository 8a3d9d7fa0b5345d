"""Engines that run a whole federation on one machine."""
