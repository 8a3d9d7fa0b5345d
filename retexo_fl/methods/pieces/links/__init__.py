"""Training on edges: rows cross one stage ahead."""
