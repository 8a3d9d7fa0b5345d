"""What methods are combined with."""
