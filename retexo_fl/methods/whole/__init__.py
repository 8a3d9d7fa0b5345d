"""All layers at once: rows cross in every round, or edges between clients are left out."""
