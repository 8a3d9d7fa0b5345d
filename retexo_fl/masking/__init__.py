"""Sums of which the server learns nothing but the sum."""
