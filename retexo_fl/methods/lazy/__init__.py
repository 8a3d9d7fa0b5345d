"""Lazy message passing: layer by layer, rows cross once before each."""
