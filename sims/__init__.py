"""Experiments: each recipe trains, and writes what came out beside what it is compared with."""
