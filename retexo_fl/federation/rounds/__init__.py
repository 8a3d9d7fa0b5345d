"""What the server asks in a round, as generators; and what it makes of the answers."""
