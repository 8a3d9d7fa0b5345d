"""Where whole graphs come from."""
