"""What every way of training must satisfy; a new one's test inherits :class:`MethodContract`."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, ClassVar, Final

import pytest
from flwr.app import Message

from retexo_fl.api.runs import Run
from retexo_fl.client.preparation import make_parts
from retexo_fl.errors import ConfigurationError, RetexoError, RunDirectoryError
from retexo_fl.federation import checkpoints
from retexo_fl.federation.records import read_request
from retexo_fl.graph import write_partitions
from retexo_fl.run_log.events import Event
from tests.support.fickle_grid import FickleGrid
from tests.support.fickle_training import node_of, train_on_fickle_grid
from tests.support.predictions import summary_of
from tests.support.runs import (
    Interrupter,
    configured,
    curves_of,
    events_of,
    ledger_of,
    result_of,
    train,
)

#: Classes that neighbours share and words tell, some nodes without edges, three clients.
GRAPH: Final[Mapping[str, Any]] = {
    "dataset": "synthetic:nodes=90,edges=260,classes=3,features=12,homophily=0.8,words=4"
    ",signal=0.8",
    "split": "random:0.3/0.3/0.4",
    **{"dtype": "float64", "hidden": 8, "layers": 2, "rounds": 3, "learning_rate": 0.1},
    **{"dropout": 0.3, "clients": 3, "model": "gcn"},
}
#: Two of three may answer for all.
QUORUM: Final[Mapping[str, Any]] = {
    **{"min_clients": 2, "round_deadline_s": 0.9, "message_timeout_s": 20.0},
}
#: The largest class's share is about a third.
LEAST_ACCURACY: Final = 0.5


class MethodContract:
    """Set what differs from the defaults in a subclass whose name begins with ``Test``.

    A sentence, a regular expression, stands for what a method refuses, else it must do it.

    Attributes:
        keys: That choose the method, in snake case.
        cut_matters: Why many clients train other weights than one; empty if they do not.
        most_by_masks: How far the loss of masked sums may be from that of others.
        no_masks: How it refuses masked sums.
        no_quorum: How it refuses to go on without a client.
        no_predictions: How ``retexo predict`` refuses its runs.
        bytes_are_planned: Whether each kind of raw bytes is known before, to the byte.
    """

    keys: ClassVar[Mapping[str, Any]]
    cut_matters: ClassVar[str] = ""
    most_by_masks: ClassVar[float] = 1e-6
    no_masks: ClassVar[str] = ""
    no_quorum: ClassVar[str] = ""
    no_predictions: ClassVar[str] = ""
    bytes_are_planned: ClassVar[bool] = True

    @pytest.fixture(scope="class")
    @classmethod
    def whole(cls, tmp_path_factory: pytest.TempPathFactory) -> Path:
        """Return a run that nothing disturbed."""
        return cls.train(tmp_path_factory.mktemp("whole") / "run")

    @classmethod
    def train(cls, out: Path, *listeners: Any, **more: Any) -> Path:
        """Train by this method in this process."""
        return train(out, *listeners, **{**GRAPH, **cls.keys, **more})

    def refuses(self, sentence: str, out: Path, **more: Any) -> None:
        """Expect one line before anything is written."""
        with pytest.raises(ConfigurationError, match=sentence) as refused:
            self.train(out, **more)
        assert "\n" not in str(refused.value)
        assert not out.exists()

    def test_it_learns_classes_of_all_nodes(self, whole: Path) -> None:
        result = result_of(whole)
        assert result["test_accuracy"] > LEAST_ACCURACY
        for use, nodes in {"train": 27, "val": 27, "test": 36}.items():
            assert sum(row[use] for row in result["client_table"]) == nodes, use

    def test_killed_after_any_event_it_ends_the_same(
        self, tmp_path: Path, whole: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # Every round is safe on the disk before the next.
        monkeypatch.setattr(checkpoints, "MOST_LOST_S", 0.0)
        # What learns in more rounds than others is killed in no more: they are all alike.
        few = {"rounds": GRAPH["rounds"]}
        if self.keys.get("rounds", few["rounds"]) != few["rounds"]:
            whole = self.train(tmp_path / "whole", **few)
        out = tmp_path / "run"
        stops = [place_of(event) for event in events_of(whole)][:-1]
        assert len({*stops}) == len(stops)
        # Each attempt is killed after the first event that ended none before: the next goes on from
        # there, and an error of any of them remains in what the last comes to.
        killed: list[tuple[object, ...]] = []
        resumed = 0
        while True:
            keys = {**few, "resume": out} if resumed else few
            try:
                self.train(out, _AfterAnother(stops, killed), **keys)
                break
            except KeyboardInterrupt:
                pass
            if (out / "checkpoint.safetensors").exists():
                resumed += 1
                continue
            assert not resumed
            with pytest.raises(RunDirectoryError, match="checkpoint"):
                self.train(out, **few, resume=out)
            shutil.rmtree(out)
        assert killed == stops
        assert resumed
        assert_same(out, whole)
        # And one process that did all but the end.
        late = tmp_path / "late"
        with pytest.raises(KeyboardInterrupt):
            self.train(late, Interrupter(len(stops)), **few)
        self.train(late, **few, resume=late)
        assert_same(late, whole)

    def test_many_clients_train_what_one_does(self, tmp_path: Path, whole: Path) -> None:
        one = self.train(tmp_path / "one", clients=1)
        if self.cut_matters:
            assert not is_close(one, whole)
            return
        assert is_close(one, self.train(tmp_path / "two", clients=2, partitioner="louvain"))
        assert is_close(one, whole)

    def test_masks_change_no_answer(self, tmp_path: Path, whole: Path) -> None:
        keys: dict[str, Any] = {"secure_aggregation": "masked"}
        if self.no_masks:
            self.refuses(self.no_masks, tmp_path / "run", **keys)
            return
        masked = self.train(tmp_path / "run", **keys)
        assert is_close(whole, masked, most=self.most_by_masks)
        # Masks are of what the server adds up; between clients as many rows cross, whose values in
        # few bits may be other ones, and so may what their zeros save.
        crossed = [ledger_of(run).sum(kind="boundary", direction="out") for run in (whole, masked)]
        assert len({(sums.messages, sums.raw) for sums in crossed}) == 1
        if self.keys.get("row_bits", 32) == 32:
            assert crossed[0] == crossed[1]

    def test_it_goes_on_without_a_client(self, tmp_path: Path) -> None:
        if self.no_quorum:
            self.refuses(self.no_quorum, tmp_path / "run", **QUORUM)
            return
        config = configured(tmp_path / "run", **{**GRAPH, **self.keys, **QUORUM})
        last = config.stages - 1

        def silence(grid: FickleGrid, message: Message) -> None:
            ticket = read_request(message).ticket
            is_second = (ticket.stage, ticket.round) == (last, 2)
            grid.weather.mute = {node_of(1)} if is_second else set()

        train_on_fickle_grid(config, make_parts(config), silence)
        absent = [e for e in events_of(tmp_path / "run") if e.get("absent")]
        assert [(e["stage"], e["round"], e["absent"]) for e in absent] == [(last, 2, [1])]

    def test_every_byte_was_planned(self, whole: Path) -> None:
        result = result_of(whole)
        for kind, planned in result["plan"]["predicted_raw"].items():
            moved = result["bytes"]["raw"][kind]
            assert moved == planned if self.bytes_are_planned else moved <= planned, kind

    def test_its_model_predicts_what_it_was_tested_on(self, tmp_path: Path, whole: Path) -> None:
        parts = tmp_path / "parts"
        write_partitions(make_parts(configured(tmp_path, **{**GRAPH, **self.keys})), parts)
        if self.no_predictions:
            with pytest.raises(RetexoError, match=self.no_predictions):
                Run.open(whole).predict(parts, quiet=True)
            return
        Run.open(whole).predict(parts, quiet=True)
        test = summary_of(parts)["labelled"]["test"]
        assert test["right"] / test["nodes"] == result_of(whole)["test_accuracy"]


def place_of(event: Mapping[str, object]) -> tuple[object, ...]:
    """Return which event of a training this is."""
    return tuple(event.get(name) for name in ("event", "stage", "round"))


class _AfterAnother:
    """Presses Ctrl-C after the first of some events after which nobody did before."""

    def __init__(
        self, stops: Collection[tuple[object, ...]], done: list[tuple[object, ...]]
    ) -> None:
        self._stops, self._done = stops, done

    def __call__(self, event: Event) -> None:
        """Look at an event, and note it if it is the last."""
        place = event.name, getattr(event, "stage", None), getattr(event, "round", None)
        if place in self._stops and place not in self._done:
            self._done.append(place)
            raise KeyboardInterrupt


def is_close(one: Path, other: Path, *, most: float = 1e-9) -> bool:
    """Return whether two trainings validate alike after each stage."""
    first, second = validation_losses(one), validation_losses(other)
    return first == pytest.approx(second, abs=most)


def validation_losses(run: Path) -> list[float]:
    """Return that of each stage that has one."""
    losses = [stage["val_loss"] for stage in result_of(run)["stages"]]
    assert losses[-1] > 0
    return [loss for loss in losses if loss is not None]


def files_of_model(run: Path) -> dict[str, bytes]:
    """Return the weights' files; none of a method without weights."""
    return {path.name: path.read_bytes() for path in run.glob("model/*")}


def ended(run: Path) -> list[int]:
    """Return the stages that ended, in the order of events: a resumed run ends none twice."""
    return [event["stage"] for event in events_of(run) if event["event"] == "stage_end"]


def assert_same(run: Path, other: Path) -> None:
    """Compare two trainings bit by bit: weights, curves and what is said of them."""
    assert files_of_model(run) == files_of_model(other)
    assert curves_of(run) == curves_of(other)
    assert ended(run) == ended(other)
    first, second = result_of(run), result_of(other)
    for name in ("stages", "test_accuracy", "val_accuracy", "confusion", "missing_rows"):
        assert first[name] == second[name], name
