"""The plan of a run that leaves it to its bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from retexo_fl.config import make_config
from retexo_fl.training.shorter_plan import has_choice, shorter_plan

AUTO = {"boundary-plan": "auto"}
CODED = {**AUTO, "row-bits": 8, "hidden": 16}
#: Eight blocks of two classes: 16 coordinates.
BASIS = {**CODED, "basis": "supervised", "basis-blocks": 8}


@dataclass(frozen=True)
class Counts:
    """Sizes as told; rows first."""

    vectors_of: tuple[int, int] = (100, 70)
    features_of: tuple[int, int] = (0, 0)

    def vectors(self, kind: str) -> int:
        return self.vectors_of[kind == "cover"]

    def feature_bytes(self, kind: str) -> int:
        return self.features_of[kind == "cover"]


def followed(keys: Mapping[str, Any], counts: Counts | None = None) -> str:
    return shorter_plan(
        make_config({"model": "gcn", **keys}),
        counts or Counts(),
        features=500,
        classes=2,
        edge_features=0,
    )


@pytest.mark.parametrize(
    ("keys", "kind"),
    [
        # 16 coordinates, then 16 hidden values: equally wide under both.
        (BASIS, "cover"),
        # 16 coordinates, then 17 values that the layer reads, or 64 that it makes.
        ({**BASIS, "hidden": 64}, "rows"),
        # Rounded rows of so many zeros may be shorter than that: nobody knows.
        ({**BASIS, "row-bits": 32}, "rows"),
        ({**AUTO, "codec": "dense"}, "cover"),
        ({**BASIS, "model": "gat"}, "rows"),
        ({**AUTO, "algorithm": "standard", "codec": "dense"}, "rows"),
    ],
)
def test_the_plan_of_fewer_bytes_is_followed(keys: Mapping[str, Any], kind: str) -> None:
    assert followed(keys) == kind


def test_a_cover_that_saves_no_vector_is_none() -> None:
    assert followed(BASIS, Counts(vectors_of=(100, 100))) == "rows"


def test_features_that_cross_count_as_they_are_coded() -> None:
    sums = {**BASIS, "basis-rows": "sums"}
    # The second exchange has 100 or 70 vectors of 18 bytes.
    assert followed(sums, Counts(features_of=(1_000, 1_539))) == "cover"
    assert followed(sums, Counts(features_of=(1_000, 1_540))) == "rows"
    # Without a basis they are rounded where that is shorter: 502 bytes for each.
    dense = {**AUTO, "row-bits": 8, "hidden": 512}
    assert followed(dense, Counts(features_of=(10**6, 10**6))) == "cover"


def test_what_was_chosen_is_followed() -> None:
    for kind in ("rows", "cover"):
        config = make_config({**BASIS, "boundary-plan": kind})
        assert not has_choice(config)
        assert followed({**BASIS, "boundary-plan": kind}, Counts(vectors_of=(1, 10**6))) == kind
