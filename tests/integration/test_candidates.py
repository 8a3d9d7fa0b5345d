"""A stage that is trained as something else, too: what is kept, and what it composes with."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, cast

import numpy as np
import pytest
import torch
from flwr.app import Message

from retexo_fl.api.plan_exchanges import PlannedParts
from retexo_fl.api.plan_facts import profile_facts_of
from retexo_fl.client.api import EvaluateRequest, TrainAnswer, TrainRequest
from retexo_fl.client.preparation import make_parts
from retexo_fl.federation import checkpoints, records
from retexo_fl.federation.rounds.stage import StageTraining
from retexo_fl.federation.rounds.stage_state import StageOutcome
from retexo_fl.federation.training import StageLoop
from retexo_fl.layers.base import GraphLayer, RowBatch
from retexo_fl.layers.dropout import KeyedDropout
from retexo_fl.layers.sage import SageLayer
from retexo_fl.ledger import TrafficLedger
from retexo_fl.training import candidates
from retexo_fl.training.selection import BestWeights, Score
from retexo_fl.updates import FewBits
from tests.support.each_choice import by_day
from tests.support.fickle_grid import FickleGrid
from tests.support.fickle_training import Change, node_of, train_on_fickle_grid
from tests.support.masked_training import HALVES, QUORUM, without_masks
from tests.support.runs import (
    configured,
    curves_of,
    events_of,
    largest_difference,
    ledger_of,
    model_bytes,
    model_weights,
    page_of,
    result_of,
    train,
)
from tests.support.update_codec_contract import KEY
from tests.support.ways import profile_keys

CLASSES: Final = 3
KEYS: Final[dict[str, Any]] = {
    **HALVES,
    "dataset": "synthetic:nodes=120,edges=400,classes=3,features=24,words=6,signal=0.6",
    "split": "random:0.4/0.3/0.3",
    **{"hidden": 8, "rounds": 4, "model": "sage", "learning_rate": 0.1, "dropout": 0.0},
    "candidates": "own-row",
}
LEAN: Final = profile_keys("lean", "rounds", "candidates", "floor")
#: The basis is the whole space of the features.
WHOLE: Final = {**LEAN, "basis_rows": "sums", "basis_blocks": 8, "candidates": "few-blocks"}
MASKED: Final = {"secure_aggregation": "masked"}
WAYS: Final[dict[str, dict[str, Any]]] = {
    "plain": {},
    "lean": LEAN,
    "masked": MASKED,
    "lean, masked": {**LEAN, **MASKED},
    "first layer": WHOLE,
    "first layer, masked": {**WHOLE, **MASKED},
    "gin": {"model": "gin", "optimizer": "lbfgs"},
    "median": {"aggregator": "median"},
}


@pytest.fixture(autouse=True)
def _always_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Try candidates whatever the stage before says, and write every round down."""
    for bound in ("_LEAST_GAP", "_LEAST_GAP_OF_NOISE"):
        monkeypatch.setattr(candidates, bound, -1.0)
    monkeypatch.setattr(checkpoints, "MOST_LOST_S", 0.0)


@pytest.fixture
def always_better(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep what was trained last."""
    monkeypatch.setattr(Score, "clearly_beats", lambda one, other: True)


@pytest.fixture
def never_better(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep what was trained first."""
    monkeypatch.setattr(Score, "clearly_beats", lambda one, other: False)


class NeighboursLast(SageLayer):
    """SAGE whose last layer is given zeros for own rows."""

    def forward(self, batch: object, dropout: KeyedDropout | None) -> torch.Tensor:
        """See :class:`.GraphLayer`."""
        assert isinstance(batch, RowBatch)
        if self.shape.outputs == CLASSES:
            assert isinstance(batch.rows, torch.Tensor)
            rows = batch.rows.clone()
            rows[:, : self.shape.inputs] = 0
            batch = RowBatch(rows=rows, hashes=batch.hashes)
        return super().forward(batch, dropout)

    def own_weights(self) -> Iterator[Any]:
        """Have nothing left out."""
        return GraphLayer.own_weights(self)


def stage_end(run: Path, stage: int) -> dict[str, Any]:
    (found,) = [e for e in events_of(run) if e["event"] == "stage_end" and e["stage"] == stage]
    return found


def rounds_of(run: Path, stage: int, candidate: str) -> list[dict[str, Any]]:
    rounds = [e for e in events_of(run) if e["event"] == "round" and e["stage"] == stage]
    return [event for event in rounds if event.get("candidate", "") == candidate]


@pytest.mark.usefixtures("always_better")
def test_the_last_layer_without_own_rows_is_that_layer_trained_alone(tmp_path: Path) -> None:
    run = train(tmp_path / "run", **KEYS)
    name = f"{__name__}:NeighboursLast"
    judge = train(tmp_path / "judge", **{**KEYS, "model": name, "weight_decay": 5e-4})
    ours, theirs = rounds_of(run, 1, "no own rows"), rounds_of(judge, 1, "")
    assert [event["round"] for event in ours] == [5, 6, 7, 8]
    for name in ("loss", "val_loss", "val_accuracy", "train_accuracy"):
        np.testing.assert_allclose(
            [event[name] for event in ours], [event[name] for event in theirs], rtol=1e-5
        )
    weight = model_weights(run)["layer-1/layer.weight"]
    assert not weight[:8].any()
    assert weight[8:].all()
    result = result_of(run)
    assert result["test_accuracy"] == result_of(judge)["test_accuracy"]
    last = result["stages"][1]
    assert (last["candidate"], last["rounds"]) == ("no own rows", 8)
    assert [one["name"] for one in last["tried"]] == ["", "no own rows"]
    assert [one["rounds"] for one in last["tried"]] == [4, 4]
    end = stage_end(run, 1)
    assert end["tried"] == last["tried"]
    assert 0 < end["train_accuracy"] <= 1
    assert "no own rows (else as it is" in page_of(run)


@pytest.mark.usefixtures("always_better")
def test_the_first_layer_of_few_blocks_is_that_of_a_smaller_basis(tmp_path: Path) -> None:
    run = train(tmp_path / "run", **{**KEYS, **WHOLE})
    weight = model_weights(run)["layer-0/layer.weight"].reshape(2, 24, 8)
    assert not weight[:, 3 * CLASSES :].any()
    assert weight[:, : 3 * CLASSES].any(axis=(1, 2)).all()
    assert result_of(run)["stages"][0]["candidate"] == "few blocks"


@pytest.mark.usefixtures("never_better")
@pytest.mark.parametrize(
    "way", by_day(WAYS, "gin", "lean, masked", "first layer", "median", others=pytest.mark.slow)
)
def test_what_is_tried_and_not_kept_leaves_no_trace_but_its_bytes(tmp_path: Path, way: str) -> None:
    keys = {**KEYS, **WAYS[way]}
    run = train(tmp_path / "run", **keys)
    judge = train(tmp_path / "judge", **{**keys, "candidates": "none"})
    assert model_bytes(run) == model_bytes(judge)
    assert result_of(run)["test_accuracy"] == result_of(judge)["test_accuracy"]
    tried = [stage for stage in result_of(run)["stages"] if stage.get("tried")]
    assert len(tried) == 1
    assert "candidate" not in tried[0]
    assert "tried" not in str(result_of(judge)["stages"])
    # What is not counted is not sent, nor said.
    assert "train_accuracy" not in str(result_of(judge)["stages"])
    ours, theirs = (ledger_of(one).sum().payload for one in (run, judge))
    assert theirs < ours < 2 * theirs


@pytest.mark.usefixtures("always_better")
@pytest.mark.parametrize(
    "way", by_day(WAYS, "plain", "lean, masked", "first layer", others=pytest.mark.slow)
)
def test_killed_between_rounds_of_a_candidate_it_goes_on_to_the_same_bits(
    tmp_path: Path, way: str
) -> None:
    keys = {**KEYS, **WAYS[way]}
    whole = train(tmp_path / "whole", **keys)
    stage = 0 if "first" in way else 1
    first = rounds_of(whole, stage, "")[-1]["round"]
    ended = next(one["rounds"] for one in result_of(whole)["stages"][stage]["tried"])
    assert first in {ended, ended - 1}
    out = tmp_path / "run"
    config = configured(out, **keys)
    parts = make_parts(config)
    asked: list[tuple[int, int]] = []

    def killed_before(number: int | None) -> Change:
        """Return what notes the rounds that are asked for, and kills before one."""

        def note(grid: FickleGrid, message: Message) -> None:
            request = records.read_request(message)
            if not isinstance(request, TrainRequest):
                return
            place = request.ticket.stage, request.ticket.round
            if place == (stage, number):
                raise KeyboardInterrupt
            asked.append(place)

        return note

    # Before the first and the third round of the candidate.
    for number in (ended + 1, ended + 3):
        with pytest.raises(KeyboardInterrupt):
            train_on_fickle_grid(config, parts, killed_before(number))
        config = configured(out, **keys, resume=out)
        assert max(asked) == (stage, number - 1)
        asked.clear()
    train_on_fickle_grid(config, parts, killed_before(None))
    assert min(asked) == (stage, ended + 3)
    assert model_bytes(out) == model_bytes(whole)
    assert curves_of(out) == curves_of(whole)
    assert result_of(out)["stages"] == result_of(whole)["stages"]


@pytest.mark.usefixtures("always_better")
@pytest.mark.parametrize("way", ["masked", "lean, masked", "first layer, masked"])
def test_under_masks_it_is_the_same_whole_numbers(tmp_path: Path, way: str) -> None:
    keys = {**KEYS, **WAYS[way]}
    run = train(tmp_path / "run", **keys)
    with pytest.MonkeyPatch.context() as patch:
        without_masks(patch)
        clear = train(tmp_path / "clear", **keys)
    assert model_bytes(run) == model_bytes(clear)
    assert result_of(run)["stages"] == result_of(clear)["stages"]
    if way == "masked":
        plain = train(tmp_path / "plain", **{**keys, "secure_aggregation": "none"})
        assert largest_difference(run, plain) < 1e-4
        ours, theirs = (
            [stage["train_accuracy"] for stage in result_of(one)["stages"]] for one in (run, plain)
        )
        assert ours == theirs


@pytest.mark.usefixtures("always_better")
def test_a_client_may_stay_away_from_a_round(tmp_path: Path) -> None:
    config = configured(tmp_path / "run", **{**KEYS, **QUORUM})

    def change(grid: FickleGrid, message: Message) -> None:
        request = records.read_request(message)
        if isinstance(request, TrainRequest):
            away = (request.ticket.stage, request.ticket.round) == (1, 6)
            grid.weather.mute = {node_of(1)} if away else set()

    train_on_fickle_grid(config, make_parts(config), change)
    absent = [e for e in events_of(tmp_path / "run") if e.get("absent")]
    assert [(e["stage"], e["round"], e["candidate"]) for e in absent] == [(1, 6, "no own rows")]
    assert not model_weights(tmp_path / "run")["layer-1/layer.weight"][:8].any()


@pytest.mark.usefixtures("always_better")
def test_of_few_bits_what_stays_is_sent_as_zeros(tmp_path: Path) -> None:
    keys = {**KEYS, **LEAN, "hidden": 512, "rounds": 3, "patience": 0}
    zeros: dict[int, bool] = {}

    def see(message: Message, reply: Message) -> Message:
        request = records.read_request(message)
        if isinstance(request, TrainRequest) and request.ticket.stage == 1:
            number = request.ticket.round
            # In a first round each client has steps of its own.
            if number in {2, 3, 5, 6}:
                coded = records.read_answer(TrainAnswer, reply).update_sum
                decoded = FewBits(update_bits=8).decode_update(coded, KEY, request.steps or b"")
                are_zeros = not decoded[: 512 * CLASSES].any()
                zeros[number] = zeros.get(number, True) and are_zeros
        return reply

    config = configured(tmp_path / "run", **keys)
    train_on_fickle_grid(config, make_parts(config), see=see)
    assert zeros == {2: False, 3: False, 5: True, 6: True}


@pytest.mark.usefixtures("always_better")
def test_clients_hear_of_nothing_but_further_rounds(tmp_path: Path) -> None:
    config = configured(tmp_path / "run", **KEYS)
    asked: list[tuple[int, int, str]] = []

    def note(grid: FickleGrid, message: Message) -> None:
        request = records.read_request(message)
        if isinstance(request, TrainRequest | EvaluateRequest):
            place = request.ticket.stage, request.ticket.round, type(request).__name__
            if asked[-1:] != [place]:
                asked.append(place)

    train_on_fickle_grid(config, make_parts(config), note)
    of_last = [(number, kind) for stage, number, kind in asked if stage == 1]
    trained = [(number, "TrainRequest") for number in range(1, 5)]
    further = [(number, "TrainRequest") for number in range(5, 9)]
    validated, tested = (4, "EvaluateRequest"), (8, "EvaluateRequest")
    assert of_last == [*trained, validated, *further, tested]


@pytest.mark.usefixtures("always_better")
@pytest.mark.parametrize("way", ["lean", "lean, masked", "first layer"])
def test_clients_compute_what_it_starts_from(tmp_path: Path, way: str) -> None:
    config = configured(tmp_path / "run", **{**KEYS, **WAYS[way]})
    sizes: dict[tuple[int, int], set[int]] = {}

    def note(grid: FickleGrid, message: Message) -> None:
        request = records.read_request(message)
        if isinstance(request, TrainRequest):
            place = request.ticket.stage, request.ticket.round
            sizes.setdefault(place, set()).add(request.weights.nbytes)

    train_on_fickle_grid(config, make_parts(config), note)
    stage = 0 if "first" in way else 1
    begins = stage, result_of(tmp_path / "run")["stages"][stage]["tried"][0]["rounds"] + 1
    # A name: no client asked for them whole.
    assert sizes[begins] == {8}
    assert sizes[stage, begins[1] + 1] != {8}


def test_it_is_kept_where_validation_says_so_clearly(tmp_path: Path) -> None:
    run = train(tmp_path / "run", **{**KEYS, "rounds": 8})
    last = result_of(run)["stages"][1]
    first, other = last["tried"]
    nodes = sum(client["val"] for client in result_of(run)["client_table"])
    share = first["val_accuracy"]
    error = (share * (1 - share) / nodes) ** 0.5
    is_clear = other["val_accuracy"] - share > error
    assert ("candidate" in last) is is_clear
    assert last["val_accuracy"] == (other if is_clear else first)["val_accuracy"]


@pytest.mark.parametrize("way", ["plain", "first layer"])
def test_it_is_not_tried_where_all_nodes_are_fitted_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    for bound in ("_LEAST_GAP", "_LEAST_GAP_OF_NOISE"):
        monkeypatch.setattr(candidates, bound, 1.0)
    run = train(tmp_path / "run", **{**KEYS, **WAYS[way], "patience": 0})
    stages = result_of(run)["stages"]
    assert [stage["rounds"] for stage in stages] == [4, 4]
    assert all(0 < stage["train_accuracy"] <= 1 for stage in stages)


@pytest.mark.usefixtures("never_better")
@pytest.mark.parametrize("keys", [{"codec": "dense"}, LEAN], ids=["as they are", "lean"])
def test_the_plan_counts_what_may_be_tried(tmp_path: Path, keys: dict[str, Any]) -> None:
    keys = {**KEYS, **keys, "patience": 0}
    run = train(tmp_path / "run", **keys)
    config = configured(tmp_path / "unused", **keys)
    planned = PlannedParts(make_parts(config))
    facts = profile_facts_of(config, planned)
    without = profile_facts_of(replace(config, candidates="none"), planned)
    assert facts["rounds"] == 12
    assert facts["messages"] == without["messages"] + 5
    payload, raw = (result_of(run)["bytes"][measure] for measure in ("payload", "raw"))
    moved = payload["total"] - payload["control"]
    if keys.get("codec") == "dense":
        assert without["payload_at_most"] < moved == facts["payload_at_most"]
        assert result_of(run)["plan"]["predicted_raw"].items() <= raw.items()
    # Few bits are coded shorter still.
    assert 0.5 * facts["payload_at_most"] < moved < 1.01 * facts["payload_at_most"]


@pytest.mark.parametrize(("correct", "ends"), [(60, False), (50, True), (None, True)])
def test_it_ends_early_where_it_is_behind(tmp_path: Path, correct: int | None, ends: bool) -> None:
    best = BestWeights()
    if correct is not None:
        # In the round before: of itself it would not end.
        best.offer(np.zeros(2), 24, Score(count=100, correct=correct, loss_sum=1.0))
    rival = StageOutcome(
        stage=1,
        rounds=10,
        best_round=7,
        score=Score(count=100, correct=50, loss_sum=1.0),
        weights=np.zeros(2),
    )
    for judged, lost in ((16, False), (17, ends)):
        if best.round_number:
            best.round_number = 10 + judged
        stage = SimpleNamespace(
            round=10 + judged + 1,
            begun=10,
            rival=rival,
            best=best,
            ticket=SimpleNamespace(stage=1),
        )
        config = configured(tmp_path / "run", **{**KEYS, "rounds": 40, "patience": 10})
        loop = StageLoop(config, TrafficLedger(), cast("StageTraining", stage))
        if correct is None and judged == 16:
            # Nothing was better for as long as patience lasts.
            continue
        assert loop.has_lost_patience is lost
        assert loop.wants_round is not lost
