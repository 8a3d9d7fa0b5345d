"""Tables of two clients, or three, with columns as they are, and all as one."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

import numpy as np

NAMES: Final = ("north", "south")
THREE: Final = (*NAMES, "west")
_HEAD: Final = ("key", "label", "balance", "country", "bank", "opened", "code")
#: How each site writes a date; of the last, cells say which number is the day.
_FORMS: Final = ("%d.%m.%Y", "%Y-%m-%d %H:%M", "%m/%d/%Y")
_ROWS: Final = 1200


def write_sites(folder: Path, names: Sequence[str] = NAMES) -> Path:
    """Write ``north.csv``, ``south.csv``, and return the table that has the rows of all.

    Balances and dates have gaps, countries are few and some of them rare; all have one bank, and
    each a code of its own. Each site writes dates in a form of its own.
    """
    rng = np.random.default_rng(0)
    rows = [
        [
            f"n{at}",
            ("no", "yes")[int(rng.random() < 0.2)],
            "" if rng.random() < 0.1 else repr(round(float(rng.lognormal(6, 2)), 2)),
            str(rng.choice(["DE", "FR", "MT", ""], p=[0.6, 0.35, 0.002, 0.048])),
            "ours",
            "",
            f"c{at}",
        ]
        for at in range(_ROWS)
    ]
    site = np.minimum((rng.random(_ROWS) / 0.3).astype(int), len(names) - 1)
    minutes = rng.integers(60 * 366 * 1440, size=_ROWS).tolist()
    for row, at, opened in zip(rows, site, minutes, strict=True):
        if rng.random() > 0.1:
            row[5] = (datetime(1965, 1, 1) + timedelta(minutes=opened)).strftime(_FORMS[at])
    for name, here in (
        *((name, site == at) for at, name in enumerate(names)),
        ("whole", site >= 0),
    ):
        with (folder / f"{name}.csv").open("w", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(_HEAD)
            writer.writerows(row for row, is_here in zip(rows, here, strict=True) if is_here)
    return folder / "whole.csv"
