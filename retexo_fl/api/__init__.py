"""Trainings, plans, predictions and sweeps as the command line and Python start them."""
