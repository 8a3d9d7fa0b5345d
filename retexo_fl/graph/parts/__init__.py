"""What one client holds of a graph: cutting, storing, checking."""
