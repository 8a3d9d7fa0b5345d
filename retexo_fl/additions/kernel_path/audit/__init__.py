"""``retexo doctor --audit``: bytes that an agent counts against those that its interfaces carry."""
