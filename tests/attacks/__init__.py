"""Attacks on masked sums, played on real agents: ``python -m tests.attacks``."""
