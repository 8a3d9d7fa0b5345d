"""All clients' predictions in one folder: made aside, put there together, described at last.

A set is the files ``predictions-CLIENT.FORM`` and ``predictions.json``, which names each file with
its SHA-256 and is put there last: with it the set is complete. While a set is made, everything lies
in a hidden folder beside it; what a killed process left there is removed by the next one.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from retexo_fl.errors import ConfigurationError
from retexo_fl.file_lock import locked_folder
from retexo_fl.files import write_whole
from retexo_fl.graph.parts.manifest import MANIFEST_NAME
from retexo_fl.methods.predict.files import FORMS, predictions_name

SUMMARY_NAME: Final = "predictions.json"
#: Raised when the meaning of the summary changes.
SUMMARY_VERSION: Final = 1
_FILE: Final = re.compile(rf"predictions-\d+\.({'|'.join(FORMS)})")
_WORKSHOP: Final = ".predictions-{}.part"


@dataclass(slots=True, kw_only=True)
class Workshop:
    """Where a set is made.

    Attributes:
        out: Folder of the finished set.
        path: Hidden folder in it, with ``clients``, ``server`` and ``scratch`` below.
    """

    out: Path
    path: Path
    _settling: bool = field(init=False, default=False)

    @property
    def clients(self) -> Path:
        """Folder that the clients write their predictions to."""
        return self.path / "clients"

    @property
    def server(self) -> Path:
        """Folder of the server's files."""
        return self.path / "server"

    @property
    def scratch(self) -> Path:
        """Folder for what clients keep between messages."""
        return self.path / "scratch"

    def settle(self, summary: Mapping[str, Any], rows: Mapping[int, int], form: str) -> None:
        """Put the set in place of what is there, the summary last.

        Args:
            summary: Facts about the set, besides its version and its files.
            rows: Predicted nodes of each client.
            form: Ending of the files.
        """
        names = {client: predictions_name(client, form) for client in rows}
        files = [
            {"client": client, "rows": rows[client], **_description(self.clients / names[client])}
            for client in sorted(rows)
        ]
        said = {"version": SUMMARY_VERSION, **summary, "files": files}
        text = json.dumps({**said, "sha256": _seal(said)}, indent=1)
        write_whole(self.path / SUMMARY_NAME, [f"{text}\n".encode()], durable=True)
        # From here on the hidden folder stays until all is done: it shows the next process that
        # files without a summary are ours.
        self._settling = True
        (self.out / SUMMARY_NAME).unlink(missing_ok=True)
        for stale in _files_in(self.out):
            if stale.name not in names.values():
                stale.unlink()
        for name in names.values():
            (self.clients / name).replace(self.out / name)
        (self.path / SUMMARY_NAME).replace(self.out / SUMMARY_NAME)
        self._settling = False

    def close(self) -> None:
        """Remove the hidden folder, unless the set was being put in place when it all ended."""
        if not self._settling:
            shutil.rmtree(self.path, ignore_errors=True)


@contextmanager
def owned_folder(out: Path) -> Iterator[None]:
    """Hold the folder of a set for this process; make it if needed, remove it if left empty.

    Raises:
        ConfigurationError: It cannot be made or written to, belongs to a part or a run, or another
            process is making predictions in it.
    """
    _check_place(out)
    is_new = not out.exists()
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(f"out: {out} cannot be used ({error.strerror})") from error
    try:
        with locked_folder(out):
            yield
    finally:
        if is_new:
            with suppress(OSError):  # where something came of it, it is not empty
                out.rmdir()


def finished_summary(out: Path, identity: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the summary of the set in ``out`` if it is whole and of this identity.

    Args:
        out: Folder of the set; held by :func:`owned_folder`.
        identity: What a summary must hold for the set to be the one that is asked for.

    Returns:
        The summary; None where there is no set, or one that a killed process did not finish.

    Raises:
        ConfigurationError: There are other predictions, or some that were altered.
    """
    advice = "expected none; choose another --out, or replace them with --overwrite"
    path, expected = out / SUMMARY_NAME, {"version": SUMMARY_VERSION, **identity}
    try:
        summary: dict[str, Any] = json.loads(path.read_bytes())
        intact = summary.pop("sha256") == _seal(summary)
    except FileNotFoundError:
        present = _files_in(out)
        if present and not _workshops_in(out):
            raise ConfigurationError(
                f"out: {present[0]} exists without a {SUMMARY_NAME}; {advice}"
            ) from None
        return None
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise ConfigurationError(f"out: {path} cannot be read ({error}); {advice}") from error
    if not intact:
        raise ConfigurationError(f"out: {path} was altered; {advice}")
    if any(summary.get(key) != value for key, value in expected.items()):
        raise ConfigurationError(f"out: {out} holds other predictions; {advice}")
    for entry in summary["files"]:
        file = out / entry["file"]
        if not file.is_file() or _description(file)["sha256"] != entry["sha256"]:
            raise ConfigurationError(f"out: {file} is missing or was altered; {advice}")
    return summary


@contextmanager
def workshop(out: Path) -> Iterator[Workshop]:
    """Make a fresh place to make a set in, then remove those that killed processes left.

    Args:
        out: Folder of the set; held by :func:`owned_folder`.
    """
    # A name of its own: a process of a killed simulation that lives on for a moment does not find
    # its folder any more, and cannot write into this one.
    made = Workshop(out=out, path=out.absolute() / _WORKSHOP.format(os.urandom(6).hex()))
    try:
        for folder in (made.clients, made.server, made.scratch):
            folder.mkdir(parents=True)
        clear_workshops(out, but=made.path)
        yield made
    finally:
        made.close()


def clear_workshops(out: Path, *, but: Path | None = None) -> None:
    """Remove what killed processes left."""
    for left in _workshops_in(out.absolute()):
        if left != but:
            shutil.rmtree(left, ignore_errors=True)


def _check_place(out: Path) -> None:
    try:
        for name, owner in ((MANIFEST_NAME, "a part"), ("config.toml", "a run")):
            if (out / name).exists():
                raise ConfigurationError(f"out: {out} is {owner}; expected another folder")
        ancestor = next(folder for folder in (out, *out.parents) if folder.exists())
        usable = ancestor.is_dir() and os.access(ancestor, os.R_OK | os.W_OK | os.X_OK)
    except OSError as error:
        raise ConfigurationError(f"out: {out} cannot be used ({error.strerror})") from error
    if not usable:
        raise ConfigurationError(
            f"out: {ancestor} cannot be written to; expected a folder for predictions (--out)"
        )


def _seal(summary: Mapping[str, Any]) -> str:
    """Return 64 hex digits over a summary's content, against changes by hand."""
    return hashlib.sha256(json.dumps(summary, sort_keys=True).encode()).hexdigest()


def _files_in(out: Path) -> list[Path]:
    return sorted(path for path in out.iterdir() if _FILE.fullmatch(path.name))


def _workshops_in(out: Path) -> list[Path]:
    return sorted(out.glob(_WORKSHOP.format("*")))


def _description(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {"file": path.name, "bytes": path.stat().st_size, "sha256": digest}
