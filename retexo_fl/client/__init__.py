"""What a client answers: its part, its mailbox, what it keeps; no process, no socket."""
