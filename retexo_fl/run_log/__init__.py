"""What a run tells of itself: events, their course, and the result."""
