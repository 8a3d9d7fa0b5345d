"""The version, which pyproject.toml repeats (Flower reads it there)."""

# Written here, since to look it up among the installed packages takes a tenth of a short command.
__version__ = "0.1.0"
