"""Training of one layer on one client, and what all algorithms share."""
