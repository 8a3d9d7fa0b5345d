"""``python -m tests.frozen --against COMMIT``: does the package still do the same?

Carries the same trainings and predictions out in a frozen version and in this tree, at the same
time and with the same interpreter, and compares, of each attempt, every message between server and
clients by its place (kind, client, attempt, stage, round), size and content, every block between
clients by sender, receiver, stage, size and content, each once, then weights, predictions and the
account. Prints a line for each case: ``equal``, or the first thing that differs. The exit code is 1
where one does. All cases take two minutes of CPU.

What a run draws comes from a stream of the case's own, so contents under masks are compared, too: a
change of what is drawn, in which order, or of how masks are made, needs ``--sizes``.

Each version brings its own ``tests/frozen``, so a change of the package's insides may change how
they are noted. Of agents blocks are compared by the account, and questions that were asked again
until vectors had come once: how often depends on the machine.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any, Final

from tests.support.commands import FLOWER_ENVIRONMENT, ROOT, environment

#: Far more than all cases take on a machine that is busy with other things.
_MOST_S: Final = 3600.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare, and say what differs."""
    parser = argparse.ArgumentParser(prog="python -m tests.frozen", description=__doc__)
    parser.add_argument("--against", required=True, help="a commit, or the folder of a checkout")
    parser.add_argument(
        "--case", action="append", default=[], help="cases with these words in their name"
    )
    parser.add_argument("--sizes", action="store_true", help="compare no contents of messages")
    asked = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="frozen-") as folder:
        trees = {"there": _exported(asked.against, Path(folder)), "here": ROOT}
        started = {
            name: _started(tree, Path(folder) / name, asked.case) for name, tree in trees.items()
        }
        there, here = (_finished(process, Path(folder) / name) for name, process in started.items())
    if not there:
        parser.error(f"--case: no name of {asked.against} has the words {asked.case}")
    different = 0
    for name in {**there, **here}:
        found = next(differences(there.get(name), here.get(name), sizes=asked.sizes), "")
        different += bool(found)
        _say(f"{name}: {found or _equal(here[name])}")
    _say(f"{len({**there, **here})} cases, {different} different from {asked.against}")
    return int(different > 0)


def _exported(frozen: str, folder: Path) -> Path:
    """Return a folder that holds the frozen version."""
    if Path(frozen).is_dir():
        tree = Path(frozen).absolute()
    else:
        archive, tree = folder / "frozen.tar", folder / "frozen"
        command = ["git", "-C", str(ROOT), "archive", f"--output={archive}", frozen]
        subprocess.run(command, check=True)
        with tarfile.open(archive) as packed:
            packed.extractall(tree, filter="data")
    if not (tree / "tests" / "frozen").is_dir():
        raise SystemExit(f"{frozen} has no tests/frozen; expected a version with this command")
    return tree


def _started(tree: Path, folder: Path, words: Sequence[str]) -> subprocess.Popen[bytes]:
    folder.mkdir()
    with (folder / "log").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "tests.frozen.record", str(folder), *words],
            cwd=tree,
            env=environment() | FLOWER_ENVIRONMENT | {"PYTHONPATH": str(tree)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )


def _finished(process: subprocess.Popen[bytes], folder: Path) -> dict[str, dict[str, Any]]:
    """Return what a version noted, by case."""
    try:
        code = process.wait(_MOST_S)
    finally:
        process.kill()
    if code:
        raise SystemExit(f"exit code {code}\n{(folder / 'log').read_text()[-4000:]}")
    paths = sorted(folder.glob("*.json"), key=lambda path: int(path.stem))
    noted = [json.loads(path.read_text(encoding="utf-8")) for path in paths]
    return {case["case"]: case for case in noted}


def differences(
    there: Mapping[str, Any] | None, here: Mapping[str, Any] | None, *, sizes: bool = False
) -> Iterator[str]:
    """Yield what differs between two notes of a case, the first in time first.

    Args:
        there: What the frozen version noted; None where it has no such case.
        here: What this one did.
        sizes: Compare no contents of messages.
    """
    if there is None or here is None:
        yield f"a case {'there' if here is None else 'here'} alone"
        return
    yield from _unequal("keys", there["keys"], here["keys"])
    sizes |= here["only_sizes"]
    for number, (one, other) in enumerate(
        zip_longest(there["attempts"], here["attempts"]), start=1
    ):
        where = f"attempt {number}"
        if one is None or other is None:
            yield f"{where} {'there' if other is None else 'here'} alone"
            return
        yield from _unequal_messages(where, one["messages"], other["messages"], sizes=sizes)
        yield from _unequal(f"{where}, blocks", _once(one["blocks"]), _once(other["blocks"]))
        yield from _unequal(f"{where}, its end", one["ended"], other["ended"])
    for name in ("files", "ledger"):
        yield from _unequal(name, there["left"].get(name), here["left"].get(name))


def _once(blocks: Sequence[Sequence[Any]]) -> list[tuple[Any, ...]]:
    """Return each block once: who sends one again, a channel does not take it again."""
    return sorted({tuple(block) for block in blocks})


def _unequal_messages(
    where: str, there: Sequence[Any], here: Sequence[Any], *, sizes: bool
) -> Iterator[str]:
    for number, (one, other) in enumerate(zip_longest(there, here), start=1):
        if one is None or other is None:
            yield f"{where}, message {number} {'there' if other is None else 'here'} alone: " + (
                _shown(one or other)
            )
            return
        place = f"{where}, message {number}: {_shown(one)}"
        if _shown(one) != _shown(other):
            yield f"{place} there, {_shown(other)} here"
            return
        for way in ("asked", "answer"):
            yield from _unequal_fields(f"{place}, {way}", one[way], other[way], sizes=sizes)


def _unequal_fields(where: str, there: Any, here: Any, *, sizes: bool) -> Iterator[str]:
    if there is None or here is None:
        yield from _unequal(where, _total(there), _total(here))
        return
    for name in sorted({**there, **here}):
        one, other = there.get(name, (None, None)), here.get(name, (None, None))
        yield from _unequal(f"{where}, bytes of {name}", one[0], other[0])
        if not sizes:
            yield from _unequal(f"{where}, content of {name}", one[1], other[1])


def _unequal(what: str, there: object, here: object) -> Iterator[str]:
    """Yield that something is not the same, and of collections what in it."""
    if there == here:
        return
    if isinstance(there, dict) and isinstance(here, dict):
        for name in sorted({**there, **here}):
            yield from _unequal(f"{what}, {name}", there.get(name), here.get(name))
    elif isinstance(there, list) and isinstance(here, list):
        pairs = enumerate(zip_longest(there, here), start=1)
        number, (one, other) = next(item for item in pairs if item[1][0] != item[1][1])
        yield f"{what}, {number}: {one} there, {other} here"
    else:
        yield f"{what}: {there} there, {here} here"


def _equal(case: Mapping[str, Any]) -> str:
    ended = case["attempts"][-1]["ended"]
    return f"equal, and both end with {ended}" if ended else "equal"


def _shown(message: Mapping[str, Any]) -> str:
    return f"{message['kind']} to client {message['client']} at {message['group']}"


def _total(fields: Mapping[str, Any] | None) -> str:
    if fields is None:
        return "nothing"
    return f"{sum(len(name) + size for name, (size, _) in fields.items())} bytes"


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
