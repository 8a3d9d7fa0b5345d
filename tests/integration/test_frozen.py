"""``python -m tests.frozen`` finds a version that does something else."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.frozen.__main__ import differences, main
from tests.frozen.cases import RESUMED, Case, cases
from tests.frozen.record import Recorder
from tests.support.commands import copy_tree

CASES = {case.name: case for case in cases()}
#: What a server asks under masks alone, and a client reads as it did without the space.
KEYS, LONGER = 'uses=" ".join(sorted(cohort.uses))', 'uses=" ".join(sorted(cohort.uses)) + " "'


def noted(case: Case, folder: Path) -> dict[str, Any]:
    folder.mkdir()
    with ExitStack() as closing:
        found: dict[str, Any] = json.loads(json.dumps(Recorder(folder, closing).record(case)))
        return found


@pytest.fixture(scope="module")
def scaffold(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    case = CASES["scaffold: one away" + RESUMED]
    return noted(case, tmp_path_factory.mktemp("one") / "run")


def test_a_case_that_goes_on_after_an_interruption_passes_the_same_each_time(
    tmp_path: Path, scaffold: dict[str, Any]
) -> None:
    first, second = scaffold["attempts"]
    assert (first["ended"], second["ended"]) == ("KeyboardInterrupt: ", "")
    assert [item["group"] for item in first["messages"] if item["answer"] is None] == ["1.1.1"]
    last = second["messages"][-1]
    assert (last["kind"], last["group"]) == ("evaluate.layer", "2.1.3")
    assert {tuple(block[:3]) for block in second["blocks"]} >= {(0, 1, 0), (2, 0, 1)}
    assert scaffold["left"]["ledger"]
    again = noted(CASES[scaffold["case"]], tmp_path / "run")
    assert not [*differences(scaffold, again)]


def edit(attempt: int, *path: Any) -> Callable[[dict[str, Any]], None]:
    """Return what puts the last item of a path in place of what stands there."""

    def change(case: dict[str, Any]) -> None:
        *places, value = path
        found = case["attempts"][attempt - 1]
        for place in places[:-1]:
            found = found[place]
        found[places[-1]] = value

    return change


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda case: case["keys"].update(rounds="4"), "keys, rounds: 3 there, 4 here"),
        (lambda case: case["attempts"].pop(), "attempt 2 there alone"),
        (
            lambda case: case["attempts"][1]["messages"].pop(),
            "attempt 2, message 27 there alone: evaluate.layer to client 2 at 2.1.3",
        ),
        (
            edit(1, "messages", 3, "client", 7),
            "attempt 1, message 4: query.publish to client 0 at 1.0.0 there, query.publish to "
            "client 7 at 1.0.0 here",
        ),
        (
            edit(2, "messages", 0, "asked", "retexo/job", (17, "")),
            "attempt 2, message 1: query.hello to client 0 at 2.0.0, asked, bytes of retexo/job: "
            "16 there, 17 here",
        ),
        (
            edit(1, "messages", 0, "answer", "retexo/features", (8, "other")),
            "attempt 1, message 1: query.hello to client 0 at 1.0.0, answer, content of "
            "retexo/features:",
        ),
        (
            edit(1, "messages", 0, "answer", "retexo/more", (1, "")),
            "attempt 1, message 1: query.hello to client 0 at 1.0.0, answer, bytes of "
            "retexo/more: None there, 1 here",
        ),
        (
            edit(1, "messages", 0, "answer", None),
            "attempt 1, message 1: query.hello to client 0 at 1.0.0, answer:",
        ),
        (edit(2, "blocks", 0, 3, 1), "attempt 2, blocks, 1: (0, 1, 0, "),
        (edit(2, "ended", "ClientFailed: 1"), "attempt 2, its end:  there, ClientFailed: 1 here"),
        (
            lambda case: case["left"]["files"].update({"model/layer-0.safetensors": ""}),
            "files, model/layer-0.safetensors: ",
        ),
        (lambda case: case["left"]["ledger"].append("1,more"), "ledger, "),
    ],
)
def test_whatever_differs_is_told(
    scaffold: dict[str, Any], change: Callable[[dict[str, Any]], object], told: str
) -> None:
    here = copy.deepcopy(scaffold)
    change(here)
    assert next(differences(scaffold, here)).startswith(told)


def test_contents_may_be_left_out(scaffold: dict[str, Any]) -> None:
    here = copy.deepcopy(scaffold)
    edit(1, "messages", 0, "answer", "retexo/features", (8, "other"))(here)
    assert [*differences(scaffold, here)]
    assert not [*differences(scaffold, here, sizes=True)]
    assert not [*differences(scaffold, here | {"only_sizes": True})]
    assert [*differences(scaffold, None)] == ["a case there alone"]


@pytest.mark.slow
def test_a_version_whose_messages_are_longer_is_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tree = copy_tree(tmp_path)
    module = tree / "retexo_fl" / "federation" / "rounds" / "mask_keys.py"
    text = module.read_text()
    assert KEYS in text
    module.write_text(text.replace(KEYS, LONGER))
    words = ("--case", "gcn lazy 3", "--case", "masks: few bits, resumed")
    assert main(["--against", str(tree), *words]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "grid: gcn lazy 3: equal",
        "masks: few bits, resumed: attempt 1, message 4: query.keys to client 0 at 1.0.0, asked, "
        "bytes of retexo/mask-uses: 28 there, 27 here",
        f"2 cases, 1 different from {tree}",
    ]
