"""Training on synthetic graphs: neighbours help, and the more so the more alike they are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from sklearn.linear_model import LogisticRegression

from retexo_fl.client.preparation import make_parts
from tests.support.runs import configured, result_of, train

_KEYS = {"clients": 3, "rounds": 25, "hidden": 32, "learning_rate": 0.02}


def _accuracy(out: Path, dataset: str) -> float:
    return float(result_of(train(out, dataset=dataset, **_KEYS))["test_accuracy"])


def _accuracy_of_features(out: Path, dataset: str) -> float:
    """Return what the features alone tell, by the same split."""
    parts = make_parts(configured(out, dataset=dataset, **_KEYS))
    rows = {
        use: (
            np.concatenate([part.features[getattr(part, use)] for part in parts]),
            np.concatenate([part.labels[getattr(part, use)] for part in parts]),
        )
        for use in ("train_mask", "test_mask")
    }
    model = LogisticRegression(max_iter=500).fit(*rows["train_mask"])
    return float(model.score(*rows["test_mask"]))


def test_neighbours_help_as_far_as_they_are_alike(tmp_path: Path) -> None:
    text = "synthetic:nodes=1500,homophily="
    alone = _accuracy_of_features(tmp_path / "alone", f"{text}0.8")
    alike, mixed = (_accuracy(tmp_path / h, f"{text}{h}") for h in ("0.8", "0.4"))
    assert 0.3 < alone < 0.6
    assert alike > alone + 0.25
    assert alike > mixed + 0.25
