"""Public data sets by their names: where their sources are, and what is made of them."""
