"""What a training tells its server and its peers, found by playing attacks on it."""
