"""The protocol of a link between two agents, sans-IO; :mod:`.session` is its one end."""
