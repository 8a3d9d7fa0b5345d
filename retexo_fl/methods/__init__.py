"""Ways of training: a folder each, and the pieces that they share."""
