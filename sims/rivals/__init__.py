"""Methods of others that recipes compare with; written from their papers."""
