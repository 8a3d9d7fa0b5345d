from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from retexo_fl.client.schema import FLAT, MAX_COUNT, array_key, flatten, named, rebuild
from retexo_fl.errors import RemoteProtocolError


@dataclass(frozen=True, slots=True, kw_only=True)
class Inner:
    count: int = 0
    measured: int | None = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    place: Inner = field(metadata=FLAT)
    moved_out: Inner = field(default_factory=Inner)
    examples: int = field(metadata=named("num-examples"))
    share: float
    is_done: bool
    name: str = ""
    digest: bytes
    sizes: tuple[int, ...]
    weights: np.ndarray | None = None


WEIGHTS = np.array([1.5, -0.0], np.float32)
LEAST = Record(
    place=Inner(measured=None), examples=3, share=0.5, is_done=True, digest=b"\x00", sizes=()
)
VALUES = {"count": 0, "num-examples": 3, "share": 0.5, "is-done": True, "digest": b"\x00"}


def test_what_costs_no_byte_is_left_out() -> None:
    assert flatten(LEAST) == (VALUES, None)
    assert rebuild(Record, VALUES) == LEAST


def test_nested_records_prefix_keys_with_their_name_unless_flat() -> None:
    record = Record(
        place=Inner(count=1, measured=2),
        moved_out=Inner(count=4, measured=5),
        examples=3,
        share=0.5,
        is_done=False,
        name="n",
        digest=b"",
        sizes=(7, 0),
        weights=WEIGHTS,
    )
    values, array = flatten(record)
    assert values == {
        **{"count": 1, "measured": 2, "moved-out-count": 4, "moved-out-measured": 5},
        **{"num-examples": 3, "share": 0.5, "is-done": False, "name": "n"},
        **{"digest": b"", "sizes": [7, 0]},
    }
    assert array is WEIGHTS
    assert array_key(Record) == "weights"
    found = rebuild(Record, values, array)
    assert found.weights is WEIGHTS
    assert flatten(found) == (values, array)


def test_metrics_may_give_booleans_and_floats_as_whole_numbers() -> None:
    found = rebuild(Record, {**VALUES, "is-done": 1, "share": 2})
    assert (found.is_done, found.share, type(found.share)) == (True, 2.0, float)


def test_an_array_of_bytes_may_be_bytes() -> None:
    weights = rebuild(Record, {**VALUES, "weights": b"\x01\x02"}).weights
    assert weights is not None
    assert weights.dtype == np.uint8
    assert weights.tolist() == [1, 2]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"num-examples": None}, "'num-examples' is missing"),
        ({"num-examples": -1}, "'num-examples' is -1; expected a count up to"),
        ({"num-examples": MAX_COUNT + 1}, "expected a count up to"),
        ({"num-examples": 1.0}, "expected a count up to"),
        ({"num-examples": True}, "expected a count up to"),
        ({"share": "0.5"}, "'share' is '0.5'; expected a float"),
        ({"share": 10**400}, "expected a number that float64 holds"),
        ({"is-done": 2}, "'is-done' is 2; expected a bool"),
        ({"digest": "00"}, "'digest' is '00'; expected a bytes"),
        ({"sizes": 3}, "'sizes' is 3; expected a list of numbers"),
        ({"sizes": [1, "2"]}, "'sizes' is '2'; expected a count"),
        ({"weights": [1.0]}, r"'weights' is \[1.0\]; expected bytes"),
        ({"moved-out-more": 1}, "'moved-out-count' is missing"),
        ({"name": "x" * 10, "more": 0}, r"Record: unknown \['more'\]"),
    ],
)
def test_a_value_that_cannot_be_is_named(changes: dict[str, Any], expected: str) -> None:
    values = {key: value for key, value in (VALUES | changes).items() if value is not None}
    with pytest.raises(RemoteProtocolError, match=expected):
        rebuild(Record, values)


def test_an_array_has_one_dimension() -> None:
    with pytest.raises(RemoteProtocolError, match=r"of shape \(1, 2\); expected an array of one"):
        rebuild(Record, VALUES, WEIGHTS[None])


def test_an_array_that_nobody_expects_is_unknown() -> None:
    with pytest.raises(RemoteProtocolError, match=r"Inner: unknown \['an array'\]"):
        rebuild(Inner, {"count": 0}, WEIGHTS)
