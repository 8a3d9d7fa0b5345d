"""Trainings whose updates, weights and vectors travel in few bits."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from retexo_fl.client.store import MemoryStore
from retexo_fl.errors import ConfigurationError
from retexo_fl.report import write_report
from retexo_fl.run_log.events import Event, RoundClosed
from tests.support.runs import (
    Interrupter,
    configured,
    events_of,
    ledger_of,
    model_bytes,
    result_of,
    train,
)

KEYS: dict[str, Any] = {
    "clients": 3,
    "hidden": 32,
    "dropout": 0.0,
    "model": "gcn",
    "rounds": 10,
    "optimizer": "lbfgs",
    "warm_start": True,
    "basis": "supervised",
    "basis_blocks": 2,
}
FEW: dict[str, Any] = {"update_bits": 8, "weight_bits": 8, "row_bits": 8, "basis_bits": 8}

#: Events after which the bytes so far are told.
TOLD = ("exchange", "stage_end", "finish")


def payload(run: Path, kind: str, purpose: str) -> int:
    return ledger_of(run).sum(kind=kind, purpose=purpose).payload


def test_eight_bits_are_a_quarter_of_the_bytes_and_as_good(tmp_path: Path, few: Path) -> None:
    plain = train(tmp_path / "plain", **KEYS, codec="dense")
    assert result_of(few)["test_accuracy"] > result_of(plain)["test_accuracy"] - 0.01
    assert payload(few, "updates_up", "train") < 0.27 * payload(plain, "updates_up", "train")
    assert payload(few, "boundary", "exchange") < 0.3 * payload(plain, "boundary", "exchange")
    assert payload(few, "updates_up", "basis") < 0.27 * payload(plain, "updates_up", "basis")
    down = payload(few, "weights_down", "train")
    assert down < 0.27 * payload(plain, "weights_down", "train")


def test_weights_that_clients_hold_are_named(tmp_path: Path) -> None:
    run = train(tmp_path / "run", **KEYS, **FEW, patience=4)
    named_bytes = 8 * KEYS["clients"]
    ledger = ledger_of(run)
    # The selected weights of the stage before, and those that are tested.
    assert ledger.sum(kind="weights_down", purpose="publish", layer=1).payload == named_bytes
    first = payload(
        train(tmp_path / "one", **{**KEYS, "rounds": 1}, **FEW), "weights_down", "train"
    )
    # Those that a stage starts from, two of them.
    assert first == 2 * named_bytes


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A training of few bits that nothing disturbs."""
    return train(tmp_path_factory.mktemp("few") / "run", **KEYS, **FEW)


@pytest.mark.parametrize("event", [6, 9, 16, 21])
def test_a_resumed_run_equals_the_undisturbed_one(tmp_path: Path, few: Path, event: int) -> None:
    out = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        train(out, Interrupter(event), **KEYS, **FEW)
    train(out, **KEYS, **FEW, resume=out)
    assert model_bytes(out) == model_bytes(few)


def test_clients_that_lost_their_weights_get_them_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = {**KEYS, **FEW, "patience": 9}
    whole = train(tmp_path / "whole", **keys)
    stores: list[MemoryStore] = []
    made = MemoryStore.__init__

    def init(self: MemoryStore) -> None:
        made(self)
        stores.append(self)

    def lose(event: Event) -> None:
        # After the last, selected weights make the next stage's rows, and are tested.
        if isinstance(event, RoundClosed) and event.round in (3, 4, 10):
            # One of them; another holds others under their names.
            stores[0]._held = {key: held[::-1] for key, held in stores[0]._held.items()}
            stores[2]._held.clear()

    monkeypatch.setattr(MemoryStore, "__init__", init)
    run = train(tmp_path / "run", lose, **keys)
    assert model_bytes(run) == model_bytes(whole)
    assert result_of(run)["test_accuracy"] == result_of(whole)["test_accuracy"]
    for purpose in ("train", "publish", "evaluate"):
        lost, kept = (payload(one, "weights_down", purpose) for one in (run, whole))
        assert lost > kept, purpose


#: All layers in one stage, whose clients wait for each other within a round.
TOGETHER: dict[str, Any] = {
    **{"clients": 3, "hidden": 16, "rounds": 30, "patience": 3, "learning_rate": 0.2},
    **{"update_bits": 8, "weight_bits": 4, "split": "random-unstratified:0.2/0.1/0.7"},
}


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return an undisturbed run by algorithm, trained when it is wanted first."""
    folder = tmp_path_factory.mktemp("together")
    return cache(lambda algorithm: train(folder / algorithm, **TOGETHER, algorithm=algorithm))


@pytest.mark.parametrize("algorithm", ["standard", "bns"])
def test_weights_of_rounds_that_exchange_are_changes(
    tmp_path: Path, together: Callable[[str], Path], algorithm: str
) -> None:
    keys = {**TOGETHER, "algorithm": algorithm, "rounds": 1}
    whole = payload(train(tmp_path / "all", **keys | {"weight_bits": 32}), "weights_down", "train")
    named_bytes = 8 * TOGETHER["clients"]
    assert payload(train(tmp_path / "one", **keys), "weights_down", "train") == named_bytes
    run = together(algorithm)
    rounds = result_of(run)["stages"][0]["rounds"]
    assert payload(run, "weights_down", "train") < 0.15 * whole * rounds
    # The stage ended by patience, so that nothing but the test was evaluated, with whole weights.
    assert payload(run, "weights_down", "evaluate") == whole


# Start, exchange, 8 or 7 rounds, of which the last three are not better, end of the stage, finish.
@pytest.mark.parametrize(
    ("algorithm", "event"),
    [*(("standard", event) for event in (4, 8, 10, 11)), ("bns", 4), ("bns", 10)],
)
@pytest.mark.each_choice
def test_a_resume_of_rounds_that_exchange_equals_the_undisturbed_run(
    tmp_path: Path, together: Callable[[str], Path], algorithm: str, event: int
) -> None:
    whole = together(algorithm)
    assert len(events_of(whole)) == (12 if algorithm == "standard" else 11)
    out, keys = tmp_path / "run", {**TOGETHER, "algorithm": algorithm}
    with pytest.raises(KeyboardInterrupt):
        train(out, Interrupter(event), **keys)
    train(out, **keys, resume=out)
    assert model_bytes(out) == model_bytes(whole)
    for key in ("test_accuracy", "stages"):
        assert result_of(out)[key] == result_of(whole)[key]


@pytest.mark.parametrize("algorithm", ["standard", "bns"])
def test_a_round_that_exchanges_is_asked_again_if_a_client_lost_weights(
    tmp_path: Path,
    together: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
    algorithm: str,
) -> None:
    """What its peers computed with the vectors that it sent meanwhile counts for nothing."""
    whole = together(algorithm)
    stores: list[MemoryStore] = []
    made = MemoryStore.__init__

    def init(self: MemoryStore) -> None:
        made(self)
        stores.append(self)

    def lose(event: Event) -> None:
        if isinstance(event, RoundClosed) and event.round == 3:
            stores[1]._held.clear()

    monkeypatch.setattr(MemoryStore, "__init__", init)
    run = train(tmp_path / "run", lose, **{**TOGETHER, "algorithm": algorithm})
    assert model_bytes(run) == model_bytes(whole)
    assert result_of(run)["test_accuracy"] == result_of(whole)["test_accuracy"]
    # What crossed for nothing is counted: a round's forward, backward and validation, with as many
    # vectors each time but other values.
    rounds = result_of(whole)["stages"][0]["rounds"]
    for purpose in ("train", "evaluate"):
        once, again = (
            ledger_of(one).sum(kind="boundary", purpose=purpose, direction="out").raw
            for one in (whole, run)
        )
        times = rounds if purpose == "train" else rounds + 1
        assert again * times == once * (times + 1)


@pytest.mark.parametrize(
    ("algorithm", "keys"),
    [
        ("standard", {"update_bits": 4, "weight_bits": 4}),
        pytest.param("bns", {"update_bits": 8, "weight_bits": 8}, marks=pytest.mark.slow),
        pytest.param("drop", {"update_bits": 8, "weight_bits": 8}, marks=pytest.mark.slow),
        ("lazy", {"update_bits": 8, "weight_bits": 4, "local_steps": 3}),
        ("lazy", {"update_bits": 2, "weight_bits": 2, "row_bits": 2, "rounds": 30, "hidden": 64}),
        pytest.param(
            "lazy",
            {"update_bits": 8, "aggregator": "trimmed-mean:0.2", "clients": 5},
            marks=pytest.mark.slow,
        ),
    ],
)
def test_every_algorithm_learns_in_few_bits(
    tmp_path: Path, algorithm: str, keys: dict[str, Any]
) -> None:
    size = {"clients": 3, "rounds": 20, "hidden": 32}
    run = train(tmp_path / "run", **{**size, "algorithm": algorithm, **keys})
    assert result_of(run)["test_accuracy"] > 0.8


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"row_bits": 8, "algorithm": "bns"}, "row-bits: 8 .*bns; expected 32, or algorithm lazy"),
        (
            {"row_bits": 4, "codec": "dense"},
            "row-bits: 4 .*dense; expected 32, or codec lossless or fixed",
        ),
        ({"row_bits": 4, "codec": "fixed"}, "row-bits: 4 .*one grid for all rows; expected 8 or"),
        ({"update_bits": 3}, "update-bits: got 3; expected one of 32, 8, 4, 2, 1"),
    ],
)
def test_what_does_not_go_together_is_refused(
    tmp_path: Path, keys: dict[str, Any], told: str
) -> None:
    with pytest.raises(ConfigurationError, match=told):
        configured(tmp_path, **keys)


def test_the_report_says_why_less_moved_than_predicted(tmp_path: Path) -> None:
    for name, more in (("plain", {}), ("few", FEW)):
        run = train(tmp_path / name, **{**KEYS, "rounds": 2}, **more)
        page = write_report(run).read_text()
        assert ("which count as raw bytes as they were sent" in page) == bool(more)


def test_an_exchange_is_told_without_the_round_that_went_with_it(few: Path) -> None:
    ledger = ledger_of(few)
    moved = [e["bytes_payload"] for e in events_of(few) if e["event"] in TOLD]
    tested = moved[-1] - moved[-2]
    for stage, begun, ended, beside in ((0, *moved[:2], 0), (1, *moved[2:4], tested)):
        rounds = sum(
            ledger.sum(layer=stage, purpose=purpose).payload for purpose in ("train", "evaluate")
        )
        assert ended - begun == rounds - beside
