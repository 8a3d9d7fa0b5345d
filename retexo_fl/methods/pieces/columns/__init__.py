"""Columns that clients make of the edges, in the place of features that nodes have not."""
