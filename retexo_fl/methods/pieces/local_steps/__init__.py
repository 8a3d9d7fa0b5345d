"""Several local steps a round, and what corrects them."""
