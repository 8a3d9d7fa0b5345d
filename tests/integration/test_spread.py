"""Nothing spreads over more of the package than it did: each measure may only fall."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from tests.support.spread import measured, reads_in, weight

#: What was measured last. Lower a number that has fallen; a commit that raises one says why.
BOUNDS: Final = {
    "reads of choices": 59,
    "modules that read choices": 38,
    "modules of a round": 45,
    "functions of a round": 216,
    "modules that masks add to it": 10,
    "functions that masks add to it": 63,
    "modules that lean adds to it": 6,
    "functions that lean adds to it": 38,
    "modules of a row over TCP": 45,
    "modules that client/client.py imports": 14,
    "modules that client/client.py needs": 129,
    "times a sequence is written": 1,
}


def test_no_measure_has_risen() -> None:
    """``python -m tests.support.spread`` prints all."""
    found = measured()
    assert found.keys() == BOUNDS.keys()
    assert min(found.values()) > 0
    assert {name: count for name, count in found.items() if count > BOUNDS[name]} == {}


@pytest.mark.parametrize(
    ("source", "reads"),
    [
        ("if config.task == 'links': pass", 1),
        ("if config.traits.end_to_end and shape.has_basis: pass", 2),
        ("a = values['solver'], values.get('secure-aggregation', 'none')", 2),
        ("if self._masks is None or training.masking is not None: pass", 2),
        ("isinstance(trainer, LayerTrainer | SampledTrainer)", 1),
        ("config.task = values['task'] = None", 0),
        ("isinstance(found, str) and found.tasks is None and values.get('seed')", 0),
        ("def task(solver): return codec", 0),
    ],
)
def test_a_read_of_a_choice_is_counted(source: str, reads: int) -> None:
    assert reads_in(source) == reads


def test_a_long_module_counts_twice_and_what_others_have_does_not(tmp_path: Path) -> None:
    short, long = tmp_path / "short.py", tmp_path / "long.py"
    short.write_text("pass\n" * 500)
    long.write_text("pass\n" * 501)
    functions = frozenset({(short, "a"), (short, "b"), (long, "c")})
    assert weight(functions) == 3
    assert weight(functions, frozenset({(long, "d")})) == 1
