"""The Flower ServerApp component: a line that Flower starts."""
