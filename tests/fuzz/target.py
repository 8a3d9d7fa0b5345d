"""What is fuzzed, and the loop that does it: cases by seed and number, failures kept."""

from __future__ import annotations

import hashlib
import logging
import random
import resource
import signal
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Final

from retexo_fl.errors import RetexoError, TableError
from tests.fuzz.mutation import mutated

#: CPU seconds that one input may take.
MOST_CPU_S: Final = 1.0
#: Memory that a process may take beside what it has when it begins.
MOST_BYTES: Final = 500 * 10**6
#: Cases that share one generator: to seed one costs as much as ten cases of a quick parser.
_BLOCK: Final = 1000
#: Inputs that failed once, by target; they are read again by every run.
FOUND: Final = Path(__file__).parent / "found"


class TooSlow(BaseException):
    """An input takes longer than it may; no parser is to catch it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One parser.

    Attributes:
        name: Of the parser, and of the folder of its found inputs.
        group: Parsers of one kind of input.
        seeds: Inputs that are in order; the parser must take each.
        read: Parses an input; what it raises from the project's tree of errors is right.
        cases: How many there are of it; CI takes the first tenth.
        repaired: Makes checksums fit again, so that what they cover is looked at; taken for every
            other case.
        words: What the format knows.
        made: Another way to make an input, by a generator, for a third of the cases: where damage
            to bytes seldom leaves the format that they are in.
    """

    name: str
    group: str
    seeds: Sequence[bytes]
    read: Callable[[bytes], object]
    cases: int
    repaired: Callable[[bytes], bytes] | None = None
    words: Sequence[bytes] = ()
    made: Callable[[random.Random], bytes] | None = None

    def case(self, seed: int, first: int) -> Iterator[bytes]:
        """Yield the cases of the block that begins with number ``first``, without end."""
        name = int.from_bytes(hashlib.sha256(self.name.encode()).digest()[:4], "big")
        rng = random.Random(name * 10**12 + seed * 10**9 + first)
        while True:
            if self.made is not None and rng.random() < 1 / 3:
                yield self.made(rng)
                continue
            data = mutated(rng, self.seeds, self.words)
            if self.repaired is not None and rng.random() < 0.5:
                data = self.repaired(data)
            yield data

    def found(self) -> list[bytes]:
        """Return the inputs that failed once."""
        return [path.read_bytes() for path in sorted((FOUND / self.name).glob("*.bin"))]


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """An input that a parser did not end by name, in time, and in memory.

    Attributes:
        target: Name of the parser.
        number: Of the case; -1 for a kept or a good input.
        data: The input.
        reason: What happened; a traceback where there was one.
    """

    target: str
    number: int
    data: bytes
    reason: str

    def keep(self, folder: Path) -> Path:
        """Write the input where the runs to come read it again."""
        path = folder / self.target / f"{hashlib.sha256(self.data).hexdigest()[:16]}.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(self.data)
        return path

    def __str__(self) -> str:
        """Say what failed, and on what."""
        shown = self.data if len(self.data) <= 400 else self.data[:400] + b"..."
        return f"{self.target}, case {self.number}: {self.reason}\n{shown!r}"


def limit_memory() -> None:
    """Have whatever would take more than :data:`MOST_BYTES` fail, in this process for good."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    most = pages * resource.getpagesize() + MOST_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def fuzz(target: Target, *, cases: int, seed: int, most_failures: int = 1) -> list[Failure]:
    """Read good inputs, kept ones, and ``cases`` damaged ones; return what failed."""
    failures: list[Failure] = []
    with _supervised():
        for number, data in _inputs(target, cases, seed):
            is_good = number == -1 and data in target.seeds
            reason = _judged(target.read, data, is_good=is_good)
            if reason is not None:
                failures.append(
                    Failure(target=target.name, number=number, data=data, reason=reason)
                )
                if len(failures) >= most_failures:
                    break
    return failures


def _inputs(target: Target, cases: int, seed: int) -> Iterator[tuple[int, bytes]]:
    for data in (*target.seeds, *target.found()):
        yield -1, data
    for first in range(0, cases, _BLOCK):
        made = target.case(seed, first)
        for number in range(first, min(first + _BLOCK, cases)):
            yield number, next(made)


def _judged(read: Callable[[bytes], object], data: bytes, *, is_good: bool) -> str | None:
    """Return what is wrong with how an input was read, None if nothing is."""
    before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begun = time.thread_time()
    wrong = _outcome(read, data, is_good=is_good)
    taken_s = time.thread_time() - begun
    if wrong is None and taken_s > MOST_CPU_S:
        wrong = f"takes {taken_s:.1f} CPU seconds"
    grown_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb
    if wrong is None and grown_kb * 1000 > MOST_BYTES:
        wrong = f"takes {grown_kb // 1000} MB"
    return wrong


def _outcome(read: Callable[[bytes], object], data: bytes, *, is_good: bool) -> str | None:
    try:
        signal.setitimer(signal.ITIMER_PROF, MOST_CPU_S)
        read(data)
    except RetexoError as error:
        if is_good:
            return f"a good input is refused: {error}"
        lines = error.problems if isinstance(error, TableError) else (str(error),)
        return f"an error of several lines: {error}" if "\n" in "".join(lines) else None
    except TooSlow:
        return f"takes more than {MOST_CPU_S:g} CPU seconds\n{traceback.format_exc(limit=-6)}"
    except Exception:
        return traceback.format_exc(limit=-6)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    return None


@contextmanager
def _supervised() -> Iterator[None]:
    """Have slow inputs end, and what parsers warn of in the others unsaid."""

    def stop(_number: int, _frame: FrameType | None) -> None:
        raise TooSlow

    before = signal.signal(signal.SIGPROF, stop)
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)
        signal.signal(signal.SIGPROF, before)
