"""What else a stage is trained as, by further rounds."""
