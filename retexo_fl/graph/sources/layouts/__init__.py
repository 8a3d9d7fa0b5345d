"""Folders and files as others lay them out: OGB, MUSAE, gnn-benchmark, heterophilous-graphs."""
