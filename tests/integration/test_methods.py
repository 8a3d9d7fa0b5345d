"""Every way of training does what all must, or refuses it by a sentence."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, ClassVar, Final

import pytest

from retexo_fl.client.preparation import make_parts
from tests.support.agents import agents, train_with
from tests.support.each_choice import by_day
from tests.support.limits import PERMISSIVE
from tests.support.method_contract import GRAPH, MethodContract, assert_same
from tests.support.runs import configured, ledger_of, train
from tests.support.ways import profile_keys

Test = Callable[..., None]


def at_night(test: Test) -> Test:
    """Return a test of the contract for the night alone.

    What a method does between events is that of one that is killed by day: of another way to make
    rows, of another share of them, of rounds that exchange.
    """

    @wraps(test)
    def copied(*args: Any, **keys: Any) -> None:
        test(*args, **keys)

    marked: Test = pytest.mark.slow(copied)
    return marked


#: The default profile's keys; rounds are the contract's.
LEAN = profile_keys("lean", "rounds")


class TestLazy(MethodContract):
    keys: ClassVar = {"algorithm": "lazy"}


class TestLean(MethodContract):
    keys: ClassVar = LEAN
    cut_matters = "each client draws how its few bits are rounded"
    most_by_masks = 0.1
    bytes_are_planned = False


class TestSecondRows(MethodContract):
    keys: ClassVar = {"second_rows": "none"}
    cut_matters = "who has an edge to a node makes its later rows by the edges that it knows"


class TestClassRows(MethodContract):
    keys: ClassVar = {"second_rows": "class"}
    cut_matters = TestSecondRows.cut_matters


class TestLeanSecondRows(MethodContract):
    keys: ClassVar = {**LEAN, "second_rows": "none"}
    cut_matters = TestSecondRows.cut_matters
    most_by_masks = 0.05
    bytes_are_planned = False
    test_killed_after_any_event_it_ends_the_same = at_night(
        MethodContract.test_killed_after_any_event_it_ends_the_same
    )


class TestRowNoise(MethodContract):
    #: Noise that never changes a class: what is drawn differs from run to run.
    keys: ClassVar = {
        **{"second_rows": "none", "basis": "supervised", "row_dp": 100.0, "codec": "dense"}
    }
    cut_matters = "rows of peers' nodes are those of their classes"
    # What is rounded in sums may turn the class of a node between two.
    most_by_masks = 0.02
    test_killed_after_any_event_it_ends_the_same = at_night(
        MethodContract.test_killed_after_any_event_it_ends_the_same
    )


class TestLeanClassRows(MethodContract):
    keys: ClassVar = {**LEAN, "second_rows": "class"}
    cut_matters = TestSecondRows.cut_matters
    most_by_masks = 0.05
    bytes_are_planned = False
    test_killed_after_any_event_it_ends_the_same = at_night(
        MethodContract.test_killed_after_any_event_it_ends_the_same
    )


class TestColumns(MethodContract):
    keys: ClassVar = {
        **{"features": "none", "structure_columns": 8, "structure_steps": 4, "structure_bits": 32},
        **{"rounds": 12, "learning_rate": 0.05},
    }
    no_quorum = "min-clients: 2 does not go with structure columns, .*; expected 0, or structure"


class TestLabelColumns(MethodContract):
    keys: ClassVar = {"features": "none", "structure": "labels", "rounds": 12}
    no_quorum = "min-clients: 2 does not go with structure labels, .*; expected 0, or structure"
    test_killed_after_any_event_it_ends_the_same = at_night(
        MethodContract.test_killed_after_any_event_it_ends_the_same
    )


class TestColumnsEndToEnd(MethodContract):
    keys: ClassVar = {**TestColumns.keys, "algorithm": "standard"}
    no_quorum = "min-clients: 2 .* algorithm standard, whose .* in every round; expected 0"
    test_killed_after_any_event_it_ends_the_same = at_night(
        MethodContract.test_killed_after_any_event_it_ends_the_same
    )


class TestStandard(MethodContract):
    keys: ClassVar = {"algorithm": "standard"}
    no_quorum = "min-clients: 2 .* algorithm standard, whose .* in every round; expected 0"


class TestBns(MethodContract):
    keys: ClassVar = {"algorithm": "bns", "boundary_rate": 0.5}
    cut_matters = "rows of other clients are sampled"
    no_quorum = "min-clients: 2 .* algorithm bns, whose .* in every round; expected 0"


class TestDrop(MethodContract):
    keys: ClassVar = {"algorithm": "drop"}
    cut_matters = "edges between clients are left out"
    test_killed_after_any_event_it_ends_the_same = at_night(
        MethodContract.test_killed_after_any_event_it_ends_the_same
    )


class TestCentral(MethodContract):
    keys: ClassVar = {"algorithm": "central", "clients": 1}
    no_masks = "secure-aggregation: masked .* clients 1; expected 3 clients at least, or .* none"
    no_quorum = "min-clients: got 2; expected at most 1, the number of clients"

    def test_many_clients_train_what_one_does(self, tmp_path: Path, whole: Path) -> None:
        self.refuses("clients: 2, but algorithm central trains on one", tmp_path / "two", clients=2)


class TestRidge(MethodContract):
    keys: ClassVar = {"solver": "ridge", "basis": "supervised", "basis_blocks": 2}
    no_quorum = "solver: ridge does not go with min-clients 2; expected rounds, or min-clients 0"


class TestPropagation(MethodContract):
    keys: ClassVar = {"algorithm": "propagation", "layers": 4}
    no_quorum = (
        "min-clients 2, since all clients are asked once; expected min-clients 0, or .* lazy"
    )
    no_predictions = "the run left no weights to predict with; expected one that trained a model"


#: Those that agents train by day: one of each set of questions.
BY_AGENTS: Final = (
    *(TestLean, TestClassRows, TestColumns, TestColumnsEndToEnd, TestBns, TestCentral, TestRidge),
    *(TestPropagation, TestRowNoise),
)


@pytest.mark.system
@pytest.mark.parametrize(
    "method", by_day(MethodContract.__subclasses__(), *BY_AGENTS, others=pytest.mark.slow)
)
def test_agents_train_what_one_process_does(tmp_path: Path, method: type[MethodContract]) -> None:
    keys = {**GRAPH, **method.keys}
    config = configured(tmp_path / "run", **keys)
    with agents(tmp_path / "agents", make_parts(config), settings=PERMISSIVE) as made:
        run = train_with(made, config)
    inline = train(tmp_path / "inline", **keys)
    assert_same(run, inline)
    assert ledger_of(run).sum(kind="boundary") == ledger_of(inline).sum(kind="boundary")
