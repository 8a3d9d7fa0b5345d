"""Parts of a training compose: each cell of one table equals its parts, or is refused by name.

What a cell is equal to:

- ``resumed``: killed after the second of three rounds of the last stage, by clients that have begun
  anew, it is the cell without, to the bit.
- ``absent``: a client that does not answer the second round of the last stage, and under masks its
  cohort, is the same training whose server asks those alone who were there, to the bit.
- ``masked``: it is the same whole numbers in the clear, to the bit; and the floats of the cell
  without masks but for the last digits of a grid, or, where few bits are drawn anew, of its draws.
- All else changes what is trained: without any of its parts a cell has other weights.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, fields
from itertools import combinations
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
from flwr.app import Message

from retexo_fl.client.api import TrainRequest
from retexo_fl.client.preparation import make_parts
from retexo_fl.config import RunConfig
from retexo_fl.errors import ConfigurationError
from retexo_fl.federation import checkpoints, records
from retexo_fl.federation.asking import Round
from retexo_fl.federation.greeting import Participants
from retexo_fl.federation.rounds.stage import StageTraining
from retexo_fl.graph import GraphPartition
from retexo_fl.training.cohorts import simulated_agreement
from retexo_fl.training.link_split import counts_by_use
from retexo_fl.training.selection import Score
from tests.support.each_choice import by_day
from tests.support.fickle_grid import FickleGrid
from tests.support.fickle_training import node_of, train_on_fickle_grid
from tests.support.masked_training import HALVES, QUORUM, without_masks
from tests.support.runs import (
    configured,
    curves_of,
    events_of,
    largest_difference,
    ledger_of,
    model_bytes,
    result_of,
)
from tests.support.ways import profile_keys

Cell = frozenset[str]

#: What all cells share: two cohorts of three, where there are masks.
KEYS: Final[Mapping[str, Any]] = {
    **HALVES,
    "dataset": "synthetic:nodes=120,edges=400,classes=3,features=24,words=6,signal=0.6",
    "split": "random:0.4/0.3/0.3",
    **{"hidden": 8, "layers": 2, "rounds": 3, "model": "gcn", "learning_rate": 0.1},
}
_STEPS: Final = {"local_steps": 2, "local_optimizer": "sgd", "local_learning_rate": 0.2}
#: What a cell is made of, and the keys that say so.
PARTS: Final[Mapping[str, Mapping[str, Any]]] = {
    "lean": {
        **profile_keys("lean", "rounds"),
        # Fewer coordinates than features, so that there is something to choose.
        **{"basis_rows": "choose", "basis_blocks": 4},
    },
    "links": {"task": "links", "split": "auto"},
    "local steps": _STEPS,
    "scaffold": {**_STEPS, "local_correction": "scaffold"},
    "masked": {"secure_aggregation": "masked"},
    "absent": QUORUM,
    "resumed": {},
}
#: Parts that do not go with each other: what is said of it, and what is left out of those of them
#: that are trained all the same.
REFUSED: Final[Mapping[tuple[str, str], tuple[str, Mapping[str, Any]]]] = {
    # Directions follow from labels, which pairs of nodes have none of.
    ("lean", "links"): (
        "basis: 'supervised' does not go with task links, which reads no labels to make it by; "
        "expected none",
        {"basis": "none", "warm_start": False},
    ),
    # Changes of the weights are no gradients of a function that has curvature.
    ("lean", "local steps"): (
        "optimizer: lbfgs does not go with local-steps 2, which .*; expected local-steps 1, or ser",
        {"optimizer": "adam"},
    ),
    ("lean", "scaffold"): (
        "optimizer: lbfgs does not go with local-steps 2, which .*; expected local-steps 1, or ser",
        {},
    ),
    # The server keeps what each client's changes were.
    ("masked", "scaffold"): (
        "secure-aggregation: masked does not go with local-correction 'scaffold', .*; expected",
        {},
    ),
}
#: How many cells: of 64, and of 32 with a correction in place of local steps alone. They only fall.
MOST_REFUSED: Final = 24 + 24
#: Who does not answer, and in which round of the last stage; before which the server is killed.
AWAY, AWAY_IN, KILLED_BEFORE = 1, 2, 3


def cells() -> Iterator[Cell]:
    """Yield all cells, those next to each other that need each other."""
    inner = ("masked", "absent", "resumed")
    for steps in ((), ("local steps",), ("scaffold",)):
        for way in subsets(("lean", "links")):
            for more in subsets(inner):
                yield way.union(steps, more)


def subsets(parts: tuple[str, ...]) -> Iterator[Cell]:
    """Yield all sets of some of these parts, the smaller first."""
    for count in range(len(parts) + 1):
        yield from map(frozenset, combinations(parts, count))


def name_of(cell: Cell) -> str:
    """Return how a cell is called."""
    return " + ".join(part for part in PARTS if part in cell) or "nothing"


def refusals(cell: Cell) -> list[tuple[str, Mapping[str, Any]]]:
    """Return what is said of a cell, and what it is trained without."""
    return [told for pair, told in REFUSED.items() if cell.issuperset(pair)]


def keys_of(cell: Cell) -> dict[str, Any]:
    """Return the keys of a cell."""
    return {**KEYS, **{key: v for part in PARTS if part in cell for key, v in PARTS[part].items()}}


CELLS: Final = list(cells())
TRAINED: Final = [cell for cell in CELLS if not refusals(cell)]
#: Refused, and trained nevertheless without the keys that are the reason.
REST: Final = [cell for cell in CELLS if refusals(cell) and "scaffold" not in cell]


@dataclass(slots=True)
class Table:
    """Trains cells, each once.

    Attributes:
        folder: Of the runs.
        runs: By cell and way, its directory.
    """

    folder: Path
    runs: dict[tuple[Cell, str], Path] = field(default_factory=dict)
    _parts: dict[str, list[GraphPartition]] = field(default_factory=dict)

    def run(self, cell: Cell) -> Path:
        """Return what a cell trains."""
        return self._trained(cell, "as it is")

    def in_the_clear(self, cell: Cell) -> Path:
        """Return the same whole numbers under masks of zeros."""
        with pytest.MonkeyPatch.context() as patch:
            without_masks(patch)
            return self._trained(cell, "zero masks")

    def of_those_there(self, cell: Cell, away: Collection[int]) -> Path:
        """Return a training of all whose server does not ask those who will be away."""
        last = self.config(cell, Path("unused")).stages - 1
        train = StageTraining.train

        def among(training: StageTraining, weights: np.ndarray | None = None) -> Round[Score]:
            everybody = training._participants
            if (training.ticket.stage, training.round + 1) == (last, AWAY_IN):
                training._participants = without(everybody, away)
            score = yield from train(training, weights)
            training._participants = everybody
            return score

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(StageTraining, "train", among)
            return self._trained(cell - {"absent"}, f"without {sorted(away)}")

    def config(self, cell: Cell, out: Path, **more: Any) -> RunConfig:
        """Return the configuration of a cell, without what is refused of it."""
        keys = keys_of(cell)
        for _, left_out in refusals(cell):
            keys |= left_out
        return configured(out, **keys, **more)

    def away(self, cell: Cell) -> tuple[int, ...]:
        """Return who is missing in a cell in which one client is absent."""
        config = self.config(cell, Path("unused"))
        if "masked" not in cell:
            return (AWAY,)
        counts = {part.client: counts_by_use(config, part) for part in self._cut(config)}
        return simulated_agreement(config, counts).cohort_of(AWAY).members

    def _trained(self, cell: Cell, way: str) -> Path:
        """Train a cell, twice if it is killed; return the run."""
        if (cell, way) in self.runs:
            return self.runs[cell, way]
        out = self.folder / str(len(self.runs))
        config = self.config(cell, out)
        parts, last = self._cut(config), config.stages - 1
        asked: list[tuple[int, int]] = []

        def change(grid: FickleGrid, message: Message) -> None:
            request = records.read_request(message)
            if not isinstance(request, TrainRequest):
                return
            place = request.ticket.stage, request.ticket.round
            is_away = "absent" in cell and place == (last, AWAY_IN)
            grid.weather.mute = {node_of(AWAY)} if is_away else set()
            if "resumed" in cell and place == (last, KILLED_BEFORE) and not config.resume:
                raise KeyboardInterrupt
            asked.append(place)

        if "resumed" in cell:
            with pytest.raises(KeyboardInterrupt):
                train_on_fickle_grid(config, parts, change)
            asked.clear()
            config = self.config(cell, out, resume=out)
        train_on_fickle_grid(config, parts, change)
        if "resumed" in cell:
            assert {*asked} == {(last, KILLED_BEFORE)}
            assert result_of(out)["attempts"] == 2
        self.runs[cell, way] = out
        return out

    def _cut(self, config: RunConfig) -> list[GraphPartition]:
        if config.task not in self._parts:
            self._parts[config.task] = make_parts(config)
        return self._parts[config.task]


def without(everybody: Participants, away: Collection[int]) -> Participants:
    """Return who takes part without these."""
    left = {
        item.name: tuple(c for c in getattr(everybody, item.name) if c not in away)
        for item in fields(everybody)
    }
    return Participants(**left)


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Table]:
    with pytest.MonkeyPatch.context() as patch:
        # Every round is safe on the disk before the next.
        patch.setattr(checkpoints, "MOST_LOST_S", 0.0)
        yield Table(tmp_path_factory.mktemp("table"))


def test_no_more_cells_are_refused_than_were(tmp_path: Path) -> None:
    assert len({*CELLS}) == len(CELLS) == 64 + 32
    refused = {}
    for cell in CELLS:
        try:
            configured(tmp_path / "run", **keys_of(cell))
        except ConfigurationError as error:
            refused[cell] = str(error)
    assert {*refused} == {*CELLS} - {*TRAINED}
    assert len(refused) <= MOST_REFUSED
    for cell, told in refused.items():
        assert any(re.match(sentence, told) for sentence, _ in refusals(cell)), name_of(cell)
        assert "\n" not in told


#: All pairs, and what has most parts: whatever lies between is of the night.
OF_DAY: Final = [c for c in TRAINED if len(c) <= 2 or not any(c < other for other in TRAINED)]


@pytest.mark.parametrize("cell", by_day(TRAINED, *OF_DAY, others=pytest.mark.slow), ids=name_of)
def test_a_cell_is_equal_to_its_parts(table: Table, cell: Cell) -> None:
    check_cell(table, cell)


@pytest.mark.slow
@pytest.mark.parametrize("cell", REST, ids=name_of)
def test_what_a_sentence_leaves_of_a_cell_is_equal_to_its_parts(table: Table, cell: Cell) -> None:
    check_cell(table, cell)


def check_cell(table: Table, cell: Cell) -> None:
    """Compare what a cell trains with what it is made of."""
    run = table.run(cell)
    if "resumed" in cell:
        whole = table.run(cell - {"resumed"})
        same_training(run, whole)
        assert absent_in(run) == absent_in(whole)
        assert result_of(run)["absences"] == result_of(whole)["absences"]
        return
    for other in less(cell):
        # Of pairs the first weights may be the best.
        assert losses_of(run) != losses_of(table.run(other)), name_of(other)
    if "absent" in cell:
        away = table.away(cell)
        last = table.config(cell, run).stages - 1
        summed = KEYS["clients"] - len(away) if "masked" in cell else None
        assert absent_in(run) == [(last, AWAY_IN, [*away], summed)]
        assert result_of(run)["absences"] == {str(client): 1 for client in away}
    if "masked" in cell:
        clear = table.in_the_clear(cell)
        same_training(run, clear)
        assert ledger_of(run).totals() == ledger_of(clear).totals()
        plain = cell - {"masked"}
        floats = table.of_those_there(plain, away) if "absent" in cell else table.run(plain)
        close(run, floats, few_bits="lean" in cell)
    elif "absent" in cell:
        same_training(run, table.of_those_there(cell, away))


def less(cell: Cell) -> Iterator[Cell]:
    """Yield the cells that train something else, for want of a part of this one."""
    for part in cell - {"masked", "resumed"}:
        yield cell - {part} | ({"local steps"} if part == "scaffold" else set())


def same_training(run: Path, other: Path) -> None:
    """Compare two trainings bit by bit, as far as weights, curves and selections go."""
    assert model_bytes(run) == model_bytes(other)
    assert curves_of(run) == curves_of(other)
    first, second = result_of(run), result_of(other)
    for name in ("stages", "test_accuracy", "val_accuracy", "missing_rows"):
        assert first[name] == second[name], name


def absent_in(run: Path) -> list[tuple[int, int, list[int], int | None]]:
    """Return rounds without all clients: stage, round, who was missing, of how many a sum was."""
    events = [event for event in events_of(run) if event.get("absent")]
    return [(e["stage"], e["round"], e["absent"], e.get("summed")) for e in events]


def losses_of(run: Path) -> list[float]:
    """Return the loss of every round, and that of the last weights of all on validation nodes."""
    rounds = [event for event in events_of(run) if event["event"] == "round"]
    return [*(event["loss"] for event in rounds), rounds[-1]["val_loss"]]


def close(run: Path, other: Path, *, few_bits: bool) -> None:
    """Compare two trainings whose numbers were rounded in other ways."""
    assert losses_of(run) == pytest.approx(losses_of(other), abs=0.1 if few_bits else 1e-4)
    if not few_bits:
        assert largest_difference(run, other) < 2e-4
