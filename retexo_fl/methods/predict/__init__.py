"""Predicting with trained layers."""
