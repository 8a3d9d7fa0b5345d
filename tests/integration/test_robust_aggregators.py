"""One of ten clients sends its updates times -10: whole trainings with every built-in aggregator.

The full experiment, with more seeds and rounds, is the recipe ``poisoned_client`` of ``sims``.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from sims.poisoning import poisoning
from sims.recipes.poisoned_client import FACTOR, ROBUST, VICTIM
from sims.training import train
from tests.support.cli import TINY, CommandLine, write_graph
from tests.support.data import data_dir
from tests.support.runs import model_bytes
from tests.support.runs import train as train_to

DIGITS = {"dataset": "digits", "model": "gcn", "rounds": 20, "hidden": 32, "learning-rate": 0.01}


def accuracy(poisoned: bool, **keys: object) -> float:
    change = poisoning(VICTIM, FACTOR) if poisoned else None
    return float(train({"clients": 10, **keys}, change)["test_accuracy"])  # type: ignore[dict-item]
