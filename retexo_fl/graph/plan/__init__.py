"""Which vectors clients send each other."""
