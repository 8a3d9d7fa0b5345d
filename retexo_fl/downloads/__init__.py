"""Files of the internet, believed only when their SHA-256 is the pinned one."""
