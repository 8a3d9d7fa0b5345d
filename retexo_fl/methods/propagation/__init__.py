"""Label propagation: rows of classes cross once for each step, and nothing is trained."""
