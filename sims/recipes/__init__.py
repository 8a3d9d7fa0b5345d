"""One experiment per file; ``python -m sims NAME`` runs ``sims/recipes/NAME.py``."""
