"""The last two layers trained together, at the end of a training layer by layer."""
