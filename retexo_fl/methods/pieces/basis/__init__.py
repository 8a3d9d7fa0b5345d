"""A basis of the features, found from sums before anything crosses."""
