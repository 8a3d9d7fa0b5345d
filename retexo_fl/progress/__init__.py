"""What a person sees while something goes on: a live table on a terminal, lines in a pipe."""

from retexo_fl.progress.training import LiveTable

__all__ = ["LiveTable"]
