"""What a run records of itself: events, their course, and the result."""
