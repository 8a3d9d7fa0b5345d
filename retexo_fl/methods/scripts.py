"""Which script a training follows."""

from __future__ import annotations

from retexo_fl.federation.training import Script, Training
from retexo_fl.methods.lazy.script import lazy
from retexo_fl.methods.propagation.script import propagate
from retexo_fl.methods.ridge.script import ridge


def script_of(training: Training) -> Script:
    """Return the method that the configuration asks for, before its first step."""
    if not training.config.traits.trains:
        return propagate(training)
    return ridge(training) if training.config.solver == "ridge" else lazy(training)
