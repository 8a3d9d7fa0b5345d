"""What a training reveals to its server and its peers, found by playing attacks on it."""
