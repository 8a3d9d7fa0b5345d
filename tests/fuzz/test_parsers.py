"""No damaged input ends otherwise than by name, within a second and 500 MB.

``RETEXO_FUZZ_TIMES`` is the share of all cases that the system test has (each night ten times as
many), ``RETEXO_FUZZ_SEED`` makes others.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from retexo_fl.errors import ProtocolError
from tests.fuzz.mutation import mutated
from tests.fuzz.target import Target, fuzz
from tests.fuzz.targets import GROUPS, all_targets

_TIMES = float(os.environ.get("RETEXO_FUZZ_TIMES", "0.05"))
_SEED = int(os.environ.get("RETEXO_FUZZ_SEED", "0"))
_AT_NIGHT = 10 * _TIMES
#: Cases of each parser in plain tests; beside the targets stand all that CI has a share of.
_FEW = 30


@pytest.fixture(scope="module")
def targets(tmp_path_factory: pytest.TempPathFactory) -> list[Target]:
    return all_targets(tmp_path_factory.mktemp("fuzz"))


@pytest.mark.parametrize("group", GROUPS)
def test_parsers_end_good_kept_and_damaged_inputs_by_name(
    targets: list[Target], group: str
) -> None:
    for target in targets:
        if target.group == group:
            failures = fuzz(target, cases=_FEW, seed=_SEED)
            assert not failures, failures[0]


@pytest.mark.system
@pytest.mark.timeout(int(300 + 600 * _AT_NIGHT))
@pytest.mark.parametrize("times", [_TIMES, pytest.param(_AT_NIGHT, marks=pytest.mark.slow)])
def test_parsers_end_many_damaged_inputs_by_name(tmp_path: Path, times: float) -> None:
    command = [sys.executable, "-m", "tests.fuzz", "--cases", str(times)]
    done = subprocess.run(
        [*command, "--seed", str(_SEED), "--keep", str(tmp_path)],
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=290 + 590 * _AT_NIGHT,
    )
    assert done.returncode == 0, done.stdout[-8000:]


# ---- the fuzzer itself --------------------------------------------------------------------------


def _target(**changes: object) -> Target:
    facts = {"name": "own", "group": "own", "seeds": [b"seed"], "read": len, "cases": 1}
    return Target(**{**facts, **changes})  # type: ignore[arg-type]


def _refuses(data: bytes) -> None:
    if data != b"seed":
        raise ProtocolError("damaged")


def _breaks(data: bytes) -> None:
    if data != b"seed":
        raise KeyError("damaged")


def _says_two_lines(data: bytes) -> None:
    if data != b"seed":
        raise ProtocolError("damaged\nhere")


def _loops(data: bytes) -> None:
    while data != b"seed":
        pass


def _waits(data: bytes) -> None:
    """Take longer than it may without an end by the signal, as compiled code does."""
    if data != b"seed":
        signal.setitimer(signal.ITIMER_PROF, 0)
        begun = time.thread_time()
        while time.thread_time() - begun < 1.1:
            pass


def test_a_named_error_is_no_failure_but_a_refused_good_input_is() -> None:
    assert fuzz(_target(read=_refuses), cases=50, seed=0) == []
    (failure,) = fuzz(_target(read=_refuses, seeds=[b"other"]), cases=0, seed=0)
    assert "a good input is refused: damaged" in failure.reason


@pytest.mark.parametrize(
    ("read", "reason"),
    [
        (_breaks, "KeyError: 'damaged'"),
        (_says_two_lines, "an error of several lines"),
        (_loops, "takes more than 1 CPU seconds"),
        (_waits, "takes 1.1 CPU seconds"),
    ],
)
def test_anything_else_is_a_failure(read: object, reason: str, tmp_path: Path) -> None:
    (failure,) = fuzz(_target(read=read), cases=1, seed=0)
    assert failure.number == 0
    assert reason in str(failure)
    path = failure.keep(tmp_path)
    assert path.read_bytes() == failure.data != b"seed"


def test_an_input_that_takes_memory_is_a_failure() -> None:
    script = (
        "from tests.fuzz.target import Target, fuzz, limit_memory\n"
        "def read(data):\n"
        "    bytes(0 if data == b'seed' else 600 * 10**6)\n"
        "limit_memory()\n"
        "target = Target(name='own', group='own', seeds=[b'seed'], read=read, cases=1)\n"
        "print(*fuzz(target, cases=1, seed=0))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=60,
    )
    assert "own, case 0: Traceback" in done.stdout
    assert "MemoryError" in done.stdout


def test_cases_are_those_of_their_seed() -> None:
    def first(seed: int, block: int) -> list[bytes]:
        cases = _target(seeds=[b"some seed, 12", b"another"]).case(seed, block)
        return [next(cases) for _ in range(200)]

    assert first(0, 0) == first(0, 0)
    assert first(0, 0) != first(1, 0)
    assert first(0, 0) != first(0, 1000)
    assert len(set(first(0, 0))) > 150


def test_no_seed_is_so_odd_that_it_cannot_be_changed() -> None:
    rng = random.Random(0)
    for _ in range(3000):
        assert isinstance(mutated(rng, [b"", b"x"], [b"word"]), bytes)
