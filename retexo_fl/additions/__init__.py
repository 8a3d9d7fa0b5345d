"""Rooms that the core never imports, and without which it works (:mod:`retexo_fl.addition`)."""
