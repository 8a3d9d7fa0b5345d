"""Several figures of one training's test: each from the sums that clients send for one metric."""

from __future__ import annotations

import csv
import math
import tempfile
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any, Final

import numpy as np

from retexo_fl.client.api import EvaluateRequest, Request
from retexo_fl.client.preparation import make_parts
from retexo_fl.config import make_config
from retexo_fl.training.metrics import AveragePrecision, RocAuc
from sims.goal_graphs import write_bank
from sims.trained import Trained
from sims.training import train_whole
from sims.trainings import Keys

#: Where the figures stand in a result, by name.
SCORES: Final = "scores"
ROC_AUC: Final = "roc-auc"
AVERAGE_PRECISION: Final = "average-precision"
MACRO_F1: Final = "macro-f1"
RMSE: Final = "rmse"
R2: Final = "r2"
_RANKINGS: Final = {ROC_AUC: RocAuc, AVERAGE_PRECISION: AveragePrecision}
#: Of the example's bank: how its tables are read.
LABEL: Final = "fraud"
_READ: Final[Keys] = {"features": "auto", "key-column": "account", "label-column": LABEL}
#: Share of labels that few labels are.
FEW: Final = "0.05"
#: Train nodes of each class among few labels; the others validate.
_TRAIN_OF_FEW: Final = 0.6


def train_scored(keys: Keys) -> Trained:
    """Train, and leave the test's figures under :data:`SCORES`.

    Of classes both rankings, whichever selects; of several labels macro F1 beside the ranking; of a
    regression R² beside the error.
    """
    totals: list[np.ndarray] = []

    def listen(index: int, request: Request[Any], answer: Any) -> Any:
        """Keep what the client sends of the test."""
        del index
        if isinstance(request, EvaluateRequest) and request.nodes == "test":
            totals.append(answer.metric.array())
        return answer

    trained = train_whole(keys, listen)
    scores = {trained.result["metric"]["name"]: trained.result["metric"]["value"]}
    if trained.result["errors"]:
        scores |= {name: trained.result["errors"][name] for name in (RMSE, R2)}
    elif "labels" in trained.result:
        scores[MACRO_F1] = fmean(map(_f1, trained.result["labels"]))
    else:
        counts = np.sum(totals, axis=0)
        scores = {name: ranking().value(counts) for name, ranking in _RANKINGS.items()}
    return replace(trained, result={**trained.result, SCORES: scores})


def _f1(label: Mapping[str, Any]) -> float:
    return 2 * float(label["hits"]) / (float(label["predicted"]) + float(label["positive"]))


def train_on_bank(keys: Keys) -> Trained:
    """Train on the example's bank of the seed that the training has; see :func:`train_scored`."""
    with tempfile.TemporaryDirectory(prefix="retexo-sims-") as folder:
        bank = Path(folder) / "bank"
        write_bank(bank, "--seed", str(keys["seed"]))
        return train_scored({**keys, **_tables(bank)})


def train_on_few_labels(keys: Keys) -> Trained:
    """Train on the labels that the bank's script leaves of :data:`FEW` of the accounts.

    Test nodes are all other accounts, whose labels the script knows.
    """
    with tempfile.TemporaryDirectory(prefix="retexo-sims-") as folder:
        bank, few = Path(folder) / "bank", Path(folder) / "few"
        write_bank(bank, "--seed", str(keys["seed"]))
        write_bank(few, "--seed", str(keys["seed"]), "--labelled", FEW)
        split_by_known(bank / "accounts.csv", few / "accounts.csv")
        return train_scored({**keys, **_tables(bank), "split": "published"})


def _tables(bank: Path) -> Keys:
    places = {"nodes": str(bank / "accounts.csv"), "edges": str(bank / "transfers.csv")}
    return {**_READ, **places}


def split_by_known(whole: Path, few: Path) -> None:
    """Add a column ``split`` to a table of accounts by which labels another one knows."""
    accounts, known = _rows(whole), _rows(few)
    found: defaultdict[str, list[int]] = defaultdict(list)
    for place, row in enumerate(known):
        found[row[LABEL]].append(place)
    for row in accounts:
        row["split"] = "test"
    for label, places in found.items():
        if label:
            count = round(_TRAIN_OF_FEW * len(places))
            for number, place in enumerate(places):
                accounts[place]["split"] = "train" if number < count else "val"
    with whole.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(accounts[0]))
        writer.writeheader()
        writer.writerows(accounts)


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def mean_alone(keys: Keys) -> Mapping[str, float]:
    """Return the error of the train nodes' mean on the test nodes of a regression, and its R²."""
    (part,) = make_parts(make_config({**keys, "clients": 1, "partitioner": "random"}))
    labels = part.labels.astype(np.float64)
    test = labels[part.test_mask]
    left = float(np.mean((test - labels[part.train_mask].mean()) ** 2))
    return {RMSE: math.sqrt(left), R2: 1 - left / float(np.var(test))}
