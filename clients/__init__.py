"""The Flower ClientApp component: a line that Flower starts."""
