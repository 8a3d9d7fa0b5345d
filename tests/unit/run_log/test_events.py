"""Events and the result: what is written is read again, older files too, and damage is named."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields
from typing import Any

import pytest

from retexo_fl.errors import RunDirectoryError
from retexo_fl.run_log.cached_rows import CachedRows
from retexo_fl.run_log.chosen_rows import ChosenRows
from retexo_fl.run_log.events import (
    EVENTS,
    PREDICTION_EVENTS,
    BasisChosen,
    Event,
    ExchangeClosed,
    Finished,
    RoundClosed,
    RoundsLost,
    RowsCounted,
    Started,
    Waiting,
    event_of,
)
from retexo_fl.run_log.json_form import OMITTED, key, parse_object, read, spread, to_json
from retexo_fl.run_log.log import line_of
from retexo_fl.run_log.result import read_result, result_text
from tests.unit.report.runs import Recipe, result
from tests.unit.report.test_network import modelled

ROUND = RoundClosed(
    time_s=1.5,
    stage=1,
    round=3,
    rounds=9,
    loss=0.25,
    absent=(2, 7),
    val_loss=0.5,
    val_accuracy=0.75,
    val_metric=0.125,
    best_round=2,
    best_val_accuracy=0.875,
    seconds=0.1,
    waited_s=0.05,
    bytes_payload=1234,
)
WRITTEN: list[Event] = [
    Started(time_s=0.0, attempt=2, clients=3, stages=2, absent=(1,)),
    RoundsLost(rounds=((0, 3, 5), (1, 1, 1))),
    Waiting(stage=0, purpose="exchange", clients=(0, 4), lacks=(7, None), open_s=3.5),
    BasisChosen(chosen=ChosenRows.of(0.25, 0.5), bytes_payload=9),
    BasisChosen(chosen=ChosenRows.of(), bytes_payload=9),
    RowsCounted(stage=0, cached=CachedRows.of((1, 2, 3, 4, 5)), bytes_payload=9),
    ExchangeClosed(stage=0, vectors=5, missing=0, error_bound=0.5, bytes_payload=9),
    ROUND,
    Finished(test_accuracy=None, test_metric=0.5, bytes_payload=9),
]


def values_of(event: Event) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(line_of(event))
    return values


@pytest.mark.parametrize("event", WRITTEN, ids=lambda event: type(event).__name__)
def test_an_event_is_read_as_it_was_written(event: Event) -> None:
    assert event_of(parse_object(line_of(event), "a file"), "a file") == event


def test_every_kind_of_line_has_a_class_of_its_own() -> None:
    for known in (EVENTS, PREDICTION_EVENTS):
        assert len(set(known.values())) == len(known)


def test_what_says_nothing_is_not_written() -> None:
    values = values_of(Waiting(stage=0, round=4, purpose="train", clients=(1,)))
    assert values == {
        "event": "waiting",
        "stage": 0,
        "round": 4,
        "purpose": "train",
        "clients": [1],
    }


def test_lines_of_earlier_versions_and_later_keys_are_read() -> None:
    values = values_of(ROUND)
    for name in ("waited_s", "seconds", "absent", "val_metric", "best_val_accuracy", "time_s"):
        del values[name]
    found = event_of({**values, "of a later version": [1]}, "a file")
    assert isinstance(found, RoundClosed)
    assert (found.round, found.absent, found.waited_s) == (3, (), None)
    assert event_of({"event": "of a later version"}, "a file") is None


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"round": "3"}, "a file, line 4: key 'round' is \"3\", expected a whole number"),
        ({"round": True}, "key 'round' is true, expected a whole number"),
        ({"round": 2**64}, "key 'round' is 18446744073709551616, expected a whole number"),
        ({"loss": "low"}, "key 'loss' is \"low\", expected a number or null"),
        ({"absent": 3}, "key 'absent' is 3, expected a list"),
        ({"absent": [1, "x"]}, r"key 'absent\[1\]' is \"x\", expected a whole number"),
        ({"event": 3}, "key 'event' is 3, expected text"),
    ],
)
def test_a_value_of_the_wrong_kind_is_named(change: dict[str, Any], told: str) -> None:
    with pytest.raises(RunDirectoryError, match=told):
        event_of({**values_of(ROUND), **change}, "a file, line 4")


@pytest.mark.parametrize("number", [-1, 10_001, 10**15])
def test_a_stage_that_no_run_has_is_refused(number: int) -> None:
    for event, name in ((ROUND, "stage"), (WRITTEN[0], "stages")):
        with pytest.raises(RunDirectoryError, match=f"key '{name}' is {number}, expected 0"):
            event_of({**values_of(event), name: number}, "a file")


def test_spans_of_lost_rounds_are_three_numbers() -> None:
    with pytest.raises(RunDirectoryError, match=r"key 'rounds\[0\]' is \[1, 2\], expected a list"):
        event_of({"event": "history_lost", "rounds": [[1, 2]]}, "a file")


@pytest.mark.parametrize(
    "name",
    [
        item.name
        for item in fields(RoundClosed)
        if item.name
        in {
            "stage",
            "round",
            "rounds",
            "loss",
            "val_loss",
            "val_accuracy",
            "best_round",
            "bytes_payload",
        }
    ],
)
def test_a_key_that_every_version_wrote_may_not_be_absent(name: str) -> None:
    values = values_of(ROUND)
    del values[name]
    with pytest.raises(RunDirectoryError, match=f"a file: key '{name}' is absent"):
        event_of(values, "a file")


def test_a_result_is_read_as_it_was_written() -> None:
    values = {**result(Recipe()), "network": modelled(), "metric": {"name": "f1", "value": 0.5}}
    found = read_result(json.dumps(values), "result.json")
    assert found.network is not None
    assert found.network.phases["exchange"] == modelled()["exchange_s"]
    text = result_text(found)
    assert read_result(text, "result.json") == found
    written = json.loads(text)
    # Version 1 as it always was; a figure that an earlier version did not know is null.
    assert written["plan"].pop("algorithm_gamma") is None
    assert {name: written[name] for name in values} == values


def test_a_form_may_rename_omit_and_spread() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Form:
        size: int = field(metadata=key("bytes"))
        note: str = field(default="", metadata=OMITTED)
        parts_s: float = 0.0
        phases: dict[str, float] = field(default_factory=dict, metadata=spread("_s"))

    globals_of = {"size": 3, "phases": {"train": 1.0, "test": 2.0}}
    form = Form(**globals_of)  # type: ignore[arg-type]
    assert to_json(form) == {"bytes": 3, "parts_s": 0.0, "train_s": 1.0, "test_s": 2.0}
    again = read(Form, to_json(form), "a test")
    assert again == form
