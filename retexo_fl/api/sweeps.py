"""Many trainings, their results as one table: resumable, each in a process of its own."""

from __future__ import annotations

import csv
import hashlib
import io
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from retexo_fl.api.spelling import words_of_python
from retexo_fl.api.sweep_graph import FOLDER, SweepGraph
from retexo_fl.api.sweep_rows import SweepRow, SweepRows, text_of, told
from retexo_fl.api.sweep_splits import with_each_split
from retexo_fl.api.sweep_targets import without_learned_features
from retexo_fl.api.training import result_of, say
from retexo_fl.api.values import check_importable, takes_keys, values_of, with_frames
from retexo_fl.config import Scalar, check_value, named_plugins
from retexo_fl.config.profiles import profile_values
from retexo_fl.config.run_config import widened
from retexo_fl.errors import (
    CheckpointError,
    ConfigurationError,
    InputError,
    Interrupted,
    RetexoError,
)
from retexo_fl.file_lock import lock_run, locked_folder
from retexo_fl.files import read_toml, write_whole
from retexo_fl.replacing import Kind, Replacement, is_taken

if TYPE_CHECKING:
    from typing import Unpack

    from retexo_fl.api.options import SweepOptions, every_key

#: The table in a sweep's folder.
TABLE_NAME: Final = "sweep.csv"
#: The table of a sweep over cuts in time, and the folder of what is predicted to judge them.
CUTS_NAME: Final = "cuts.csv"
JUDGED: Final = "judged"
#: A set of keys, chosen like one of them.
_PROFILE: Final = "profile"
_PARTITIONS: Final = "partitions"
#: What a sweep decides for its runs.
_OWN_KEYS: Final = ("out", "resume")
_POLL_S: Final = 0.05
#: A run that was interrupted writes its state down; one that does not end is killed.
_END_S: Final = 60.0
_DIGITS: Final = 10
_LONGEST_LABEL: Final = 60
_ERROR: Final = "retexo: error: "


@words_of_python()
@takes_keys
def sweep(
    configs: Iterable[Mapping[str, object]] = (),
    *,
    out: str | Path,
    jobs: int = 1,
    profile: str | Sequence[str] | None = None,
    graph: object | None = None,
    quiet: bool = False,
    overwrite: bool = False,
    **base: Unpack[SweepOptions],
) -> SweepRows:
    """Train many configurations and return their results as one table, in their order.

    Called again with the same folder it goes on: a run that has finished is not trained again, one
    that was interrupted or failed is resumed. A run that fails does not end the others.

    Args:
        configs: Keys of each run, in snake case, and ``profile``; without any there is one.
        out: Folder of the run directories, and of ``sweep.csv``, the same table.
        jobs: How many are trained at once, each in a process of its own.
        profile: As in :func:`retexo_fl.run`.
        graph: Likewise, for all runs; or DataFrames as ``nodes`` and ``edges``. It is cut for the
            processes, into parts in the folder of the sweep. Another graph has other runs there.
        quiet: Do not say how runs end.
        overwrite: Begin anew: replace the sweep that is in ``out``, once a run of this one has
            begun; a folder that holds anything else is refused.
        base: Keys of all runs, which ``configs`` override.

    In both a list or a range means one run with each of its values, combined with those of other
    lists; ``split="published:all"`` means one with each split that the graph brings.

    Raises:
        ConfigurationError: A key is unknown or its value not allowed, two runs are the same, or the
            folder cannot be used.
        Interrupted: Ctrl-C. Runs that were under way can be resumed, as above.
    """
    if TYPE_CHECKING:
        every_key(**base)  # type: ignore[misc]
    keys, graph = with_frames(dict(base), graph)
    keys |= {} if profile is None else {_PROFILE: profile}
    runs = [checked_keys(own) for own in expanded(keys, [*configs])]
    handed = None if graph is None else SweepGraph(graph, quiet=quiet)
    tell = _silent if quiet else say
    return sweep_of(runs, Path(out), jobs=jobs, tell=tell, graph=handed, overwrite=overwrite)


def sweep_in(
    file: Path | None, chosen: Mapping[str, object] = MappingProxyType({})
) -> list[dict[str, Scalar]]:
    """Return the runs of a TOML file with a table ``base`` and any number of tables ``run``.

    Args:
        file: The file; None for one run.
        chosen: Keys of all runs, which win over those of the file; a list means one run with
            each of its values.

    Raises:
        ConfigurationError: It cannot be read, or holds something else.
    """
    if file is None:
        return [checked_keys(keys) for keys in expanded(chosen, [])]
    found = read_toml(file)
    base, runs = found.pop("base", {}), found.pop("run", [])
    is_list = isinstance(runs, list) and all(isinstance(one, dict) for one in runs)
    if found or not isinstance(base, dict) or not is_list or not (base or runs):
        odd = f"; got {min(found)!r}" if found else ""
        raise ConfigurationError(f"{file}: expected a table [base], tables [[run]], or both{odd}")
    try:
        return [
            checked_keys(keys)
            for keys in expanded({**base, **chosen}, [{**own, **chosen} for own in runs])
        ]
    except ConfigurationError as error:
        raise ConfigurationError(f"{file}: {error}") from error


def expanded(
    base: Mapping[str, object], configs: Sequence[Mapping[str, object]]
) -> list[dict[str, object]]:
    """Return the keys of each run: those of all and its own, with every combination of lists."""
    runs = []
    for config in configs or [{}]:
        keys = {**base, **config}
        axes = [[*v] if isinstance(v, list | range) else [v] for v in keys.values()]
        runs += [dict(zip(keys, values, strict=True)) for values in itertools.product(*axes)]
    return runs


def sweep_of(
    runs: Sequence[Mapping[str, Scalar]],
    out: Path,
    *,
    jobs: int,
    tell: Callable[[str], None],
    overwrite: bool = False,
    graph: SweepGraph | None = None,
) -> SweepRows:
    """Train what :func:`sweep_in` returned; see :func:`sweep`.

    Args:
        runs: Keys of each run.
        out: Folder of the sweep.
        jobs: Runs at once.
        tell: Is handed a sentence when a run ends.
        overwrite: Replace a sweep that is there.
        graph: What all runs train on; None for what their keys name.
    """
    if jobs < 1:
        raise ConfigurationError(f"jobs: got {jobs}; expected a whole number from 1")
    runs = with_each_split(runs, None if graph is None else graph.given)
    runs = without_learned_features(runs, tell)
    digests = _digests(runs)
    given: Sequence[Mapping[str, Scalar] | InputError] = runs
    with _replacing(out) if overwrite else nullcontext() as former:
        if graph is not None:
            given = graph.readings(runs, out)
            digests = [_of_graph(*both) for both in zip(digests, given, strict=True)]
        places = _places(runs, digests, out)
        with locked_folder(out, shared=True, doing="at work on the sweep in"):
            return _trained(runs, given, places, out, jobs=jobs, tell=tell, former=former)


def _trained(
    runs: Sequence[Mapping[str, Scalar]],
    given: Sequence[Mapping[str, Scalar] | InputError],
    places: Sequence[Path],
    out: Path,
    *,
    jobs: int,
    tell: Callable[[str], None],
    former: _Former | None,
) -> SweepRows:
    """Train what has not finished, each from the keys that its process gets."""
    rows: dict[int, SweepRow] = {}

    def settle(number: int, error: str) -> None:
        rows[number] = row = _row(runs[number], places[number], error)
        ended = [rows[n] for n in sorted(rows)]
        keys = itertools.chain(*(each.keys for each in ended))
        write_table([each.cells() for each in ended], out / TABLE_NAME, first=keys)
        tell(f"{len(rows)} of {len(runs)}: {_label(row.keys, runs)}: {told(row)}")

    waiting = []
    for number, place in enumerate(places):
        if (place / "result.json").is_file():
            settle(number, "")
        else:
            waiting.append(number)
    try:
        with _Children() as children:
            while waiting or children.running:
                while waiting and len(children.running) < jobs:
                    number = waiting.pop(0)
                    if error := children.start(number, given[number], places[number]):
                        settle(number, error)
                for number, error in children.ended():
                    settle(number, error)
                if former is not None:
                    former.give_way_to(places)
                time.sleep(_POLL_S)
    except KeyboardInterrupt:
        raise Interrupted(
            f"interrupted; {len(rows)} of {len(runs)} runs have ended, the same sweep goes on with "
            f"the others in {out}"
        ) from None
    return SweepRows(rows[number] for number in range(len(runs)))


# ---- what is trained ----------------------------------------------------------------------------


def checked_keys(keys: Mapping[str, object]) -> dict[str, Scalar]:
    """Return keys of a run as a configuration has them, each of them one that is allowed.

    Whether they go together is found out by the run.
    """
    keys = dict(keys)
    profile = keys.pop(_PROFILE, None)
    values = values_of(keys)
    for key, value in values.items():
        if key in _OWN_KEYS:
            raise ConfigurationError(f"{key}: is the sweep's to choose; expected no such key")
        values[key] = _one_form(key, value)
    check_importable(values, where="a sweep")
    if profile is not None:
        profile_values(str(profile))
        values[_PROFILE] = str(profile)
    return values


def _one_form(key: str, value: Scalar) -> Scalar:
    """Return an allowed value in one form: 1.0 for 1, where both train the same."""
    wanted = widened(key, value)
    check_value(key, wanted)
    assert isinstance(wanted, Scalar)
    return wanted


def _digests(runs: Sequence[Mapping[str, Scalar]]) -> list[str]:
    """Return what names each run by all of its keys."""
    digests = [_digest(keys) for keys in runs]
    for number, digest in enumerate(digests):
        if (first := digests.index(digest)) < number:
            raise ConfigurationError(
                f"configs: run {number + 1} is run {first + 1} again; expected each once"
            )
    return digests


def _of_graph(digest: str, given: Mapping[str, Scalar] | InputError) -> str:
    """Return what names a run by its keys and the parts that it reads, wherever these are."""
    name = "" if isinstance(given, InputError) else Path(str(given[_PARTITIONS])).name
    return _digest({"keys": digest, "parts": name})


def _places(runs: Sequence[Mapping[str, Scalar]], digests: Sequence[str], out: Path) -> list[Path]:
    """Return the run directory of each run; make the folder of the sweep.

    A directory of the same keys is found again, whatever the other runs are.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
        there = {path.name.rpartition("-")[2]: path for path in out.iterdir() if path.is_dir()}
    except OSError as error:
        raise ConfigurationError(f"out: {out} cannot be used ({error.strerror})") from error
    return [
        there.get(digest, out / f"{_file_name(_label(keys, runs))}-{digest}").absolute()
        for keys, digest in zip(runs, digests, strict=True)
    ]


def _digest(keys: Mapping[str, Scalar]) -> str:
    text = json.dumps(keys, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]


def _label(keys: Mapping[str, Scalar], runs: Sequence[Mapping[str, Scalar]]) -> str:
    """Return in what a run differs from others."""
    differing = [k for k, v in keys.items() if any(run.get(k) != v for run in runs)]
    return ", ".join(f"{key} {text_of(keys[key])}" for key in differing) or "run"


def _file_name(label: str) -> str:
    return re.sub(r"[^A-Za-z0-9.]+", "-", label)[:_LONGEST_LABEL].strip("-.")


# ---- what was there before ----------------------------------------------------------------------


def _is_sweep(out: Path) -> bool:
    """Return whether there is a table of a sweep, or a run of one."""
    try:
        head = (out / TABLE_NAME).read_text(encoding="utf-8").partition("\n")[0].split(",")
    except (OSError, ValueError):
        head = []
    return {"state", "error", "run"} <= {*head} or any(out.glob("*/config.toml"))


@contextmanager
def _hold_all(out: Path) -> Iterator[None]:
    """Hold a sweep, and all of its runs."""
    with ExitStack() as stack:
        stack.enter_context(locked_folder(out, doing="at work on the sweep in"))
        for config in out.glob("*/config.toml"):
            stack.enter_context(lock_run(config, option="out"))
        yield


def _kind() -> Kind:
    from retexo_fl.federation.run_directory import RUN
    from retexo_fl.graph.parts.storage import PARTS

    name = rf"[A-Za-z0-9.-]+-[0-9a-f]{{{_DIGITS}}}"
    return Kind(
        name="a sweep",
        # With a run's log of Flower, and what a process that was killed left of a run.
        files=re.compile(
            rf"(?:{re.escape(TABLE_NAME)}|{re.escape(CUTS_NAME)})(?:\.\d+\.part)?"
            rf"|{name}/(?:{RUN.files.pattern})|{name}\.log|{JUDGED}/{name}/.*"
            rf"|\.{name}\.(?:rows|\d+\.part)/.*"
            rf"|{FOLDER}/[0-9a-f]+/(?:{PARTS.files.pattern})|{FOLDER}/\.[0-9a-f]+\.\d+\.part/.*"
        ),
        is_one=_is_sweep,
        hold=_hold_all,
    )


@dataclass(slots=True)
class _Former:
    """The sweep that was there, kept until a run of the new one has begun."""

    replacement: Replacement | None

    def give_way_to(self, places: Sequence[Path]) -> None:
        """Remove it where one of these runs has begun."""
        if self.replacement and any((place / "config.toml").exists() for place in places):
            self.replacement.close()
            self.replacement = None

    def come_back(self) -> None:
        """Put it in its place again, if no run has begun."""
        if self.replacement:
            self.replacement.swap()
            self.replacement.close()


@contextmanager
def _replacing(out: Path) -> Iterator[_Former]:
    """Put an empty folder in the place of a sweep."""
    try:
        replacement = Replacement(out, _kind()) if is_taken(out) else None
        if replacement is not None:
            try:
                replacement.swap()
            except BaseException:
                replacement.close()
                raise
    except OSError as error:
        raise ConfigurationError(f"out: {out} cannot be replaced ({error.strerror})") from error
    former = _Former(replacement)
    try:
        yield former
    finally:
        former.come_back()


# ---- processes ----------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class _Child:
    process: subprocess.Popen[bytes]
    stderr: Any
    place: Path


class _Children:
    """Runs under way, each a `retexo run`; none outlives the context."""

    def __init__(self) -> None:
        self.running: dict[int, _Child] = {}

    def __enter__(self) -> _Children:
        return self

    def __exit__(self, *_: object) -> None:
        for child in self.running.values():
            child.process.send_signal(signal.SIGINT)
        deadline = time.monotonic() + _END_S
        for child in self.running.values():
            try:
                child.process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                child.process.kill()
                child.process.wait()
            child.stderr.close()

    def start(self, number: int, keys: Mapping[str, Scalar] | InputError, place: Path) -> str:
        """Start a run, or resume it; return why it cannot be started, empty where it was."""
        if isinstance(keys, InputError):
            return str(keys)
        if (place / "checkpoint.safetensors").is_file():
            moved = [f"--{_PARTITIONS}={keys[_PARTITIONS]}"] if _PARTITIONS in keys else []
            allowed = ["--allow-plugins"] if named_plugins(keys) else []
            arguments = [f"--resume={place}", *moved, *allowed]
        else:
            if error := _clear(place):
                return error
            chosen = (f"--{key}={text_of(value)}" for key, value in keys.items())
            arguments = [*chosen, f"--out={place}"]
        stderr = tempfile.TemporaryFile()  # noqa: SIM115 - closed when the run has ended
        process = subprocess.Popen(  # noqa: S603 - our own command, each argument an option
            [sys.executable, "-m", "retexo_fl", "run", "--quiet", *arguments],
            # What this process imports, they may name.
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
        )
        self.running[number] = _Child(process=process, stderr=stderr, place=place)
        return ""

    def ended(self) -> Iterator[tuple[int, str]]:
        """Yield runs that have ended, with what they failed by."""
        for number, child in [*self.running.items()]:
            code = child.process.poll()
            if code is None:
                continue
            del self.running[number]
            child.stderr.seek(0)
            lines = child.stderr.read().decode(errors="replace").splitlines()
            child.stderr.close()
            yield number, _failure(code, lines, child.place)


def _failure(code: int, lines: Sequence[str], place: Path) -> str:
    """Return what a run failed by; empty if it finished."""
    if code == 0 and (place / "result.json").is_file():
        return ""
    told = [line.removeprefix(_ERROR) for line in lines if line.startswith(_ERROR)]
    if told:
        return told[0]
    last = f": {lines[-1]}" if lines else ""
    if code < 0:
        return f"ended by {signal.Signals(-code).name}{last}"
    return f"ended with exit code {code}{last}"


def _clear(place: Path) -> str:
    """Remove what a run left that ended before its first checkpoint; return why that cannot be."""
    if not (place / "config.toml").is_file():
        return ""
    try:
        lock_run(place / "config.toml").close()
    except RetexoError as error:
        return str(error)
    shutil.rmtree(place, ignore_errors=True)
    return ""


# ---- the table ----------------------------------------------------------------------------------


def _row(keys: Mapping[str, Scalar], place: Path, error: str) -> SweepRow:
    if error:
        return SweepRow(keys=keys, path=place, error=error)
    try:
        return SweepRow(keys=keys, path=place, result=result_of(place))
    except RetexoError as damage:
        return SweepRow(keys=keys, path=place, error=str(damage))


def write_table(cells: Sequence[Mapping[str, Any]], path: Path, first: Iterable[str] = ()) -> None:
    """Write rows of cells by the name of their column as CSV; a row may lack some of another's.

    Args:
        cells: The rows.
        path: Of the file.
        first: Columns that come before others.

    Raises:
        CheckpointError: It could not be written.
    """
    names = dict.fromkeys(itertools.chain(first, *cells))
    text = io.StringIO()
    writer = csv.DictWriter(text, [*names], lineterminator="\n")
    writer.writeheader()
    writer.writerows(cells)
    try:
        write_whole(path, [text.getvalue().encode(errors="backslashreplace")])
    except OSError as error:
        raise CheckpointError(f"{path}: could not be written ({error.strerror})") from error


def _silent(_: str) -> None:
    pass
