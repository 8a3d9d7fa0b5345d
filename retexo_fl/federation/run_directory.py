"""What a run leaves on disk, written so that an interrupted run can be resumed."""

from __future__ import annotations

import logging
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import BinaryIO, Final

import numpy as np
import tomli_w

from retexo_fl.config import PLACE_KEYS, RunConfig, config_values, make_config
from retexo_fl.config.file import read_config_file
from retexo_fl.errors import CheckpointError, RunDirectoryError
from retexo_fl.federation.checkpoints import (
    Checkpoint,
    Checkpoints,
    named_damage,
    read_checkpoint,
    replace_file,
    write_checkpoint,
)
from retexo_fl.federation.layer_files import (
    LayerFacts,
    basis_path,
    columns_path,
    floor_path,
    layer_path,
    read_basis_file,
    read_flat_file,
    read_layer_file,
    refined_path,
    write_layer_file,
)
from retexo_fl.federation.resume_checks import (
    check_longer,
    check_unchanged,
    fixed_values,
    told_rounds,
)
from retexo_fl.file_lock import lock_run
from retexo_fl.ledger import TrafficLedger
from retexo_fl.methods.keys import check_extended
from retexo_fl.replacing import PREDICTIONS, Kind, Replacement, check_replaceable, is_taken
from retexo_fl.run_log.log import EventLog, RoundSpan
from retexo_fl.run_log.result import Result, result_text
from retexo_fl.run_status import correct_status, is_status, write_status

logger = logging.getLogger(__name__)

_FILES: Final = (
    r"config\.toml|metrics\.jsonl|status\.json|ledger\.csv|result\.json|report\.html|recipe\.toml"
    r"|checkpoint\.safetensors|checkpoint-ledger-\d+\.csv|flower\.log|devices\.log|noise\.key"
    r"|model/(?:(?:layer-\d+|refined-\d+|columns|basis|floor)\.safetensors)?"
)
#: What a run directory holds, with what a process that was killed was writing.
RUN: Final = Kind(
    name="a run",
    files=re.compile(
        rf"(?:{_FILES})(?:\.\d+\.part)?|predictions/(?:{PREDICTIONS}|events\.jsonl|status\.json)?"
    ),
    is_one=lambda path: (path / "config.toml").is_file() and is_status(path),
    hold=lambda path: lock_run(path / "config.toml", option="out"),
    error=RunDirectoryError,
)


class RunDirectory:
    """A folder with ``config.toml``, ``metrics.jsonl``, ``ledger.csv``, ``model``, ``result.json``.

    ``status.json`` says whether the run is active, finished, failed or was interrupted;
    ``checkpoint.safetensors`` is what a resume starts from, with the account of bytes in
    ``checkpoint-ledger-N.csv``.

    Attributes:
        path: The folder.
        log: Its history.
        checkpoints: What a resume starts from.
        replacement: The run whose place this one is yet to take; None without one.
        lost_rounds: Rounds of earlier attempts that ``metrics.jsonl`` lost, by a crash of the
            machine.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.log = EventLog(path / "metrics.jsonl")
        self.checkpoints = Checkpoints(path, self.log)
        self.replacement: Replacement | None = None
        self._held: BinaryIO | None = None
        self.lost_rounds: list[RoundSpan] = []

    # ---- beginning ------------------------------------------------------------------------------

    def create(self, config: RunConfig, *, overwrite: bool = False) -> None:
        """Make the folder and write ``config.toml``.

        Args:
            config: Of the run.
            overwrite: Where another run is, make it beside that, until :meth:`take_place`.

        Raises:
            RunDirectoryError: The folder holds something already, or cannot be made.
        """
        check_free(self.path, overwrite=overwrite)
        try:
            self._make(overwrite=overwrite)
            self.checkpoints.config = fixed_values(config)
            self._write_config(config)
            self._lock()
        except BaseException:
            self.close()
            raise

    def _make(self, *, overwrite: bool) -> None:
        try:
            if overwrite and is_taken(self.path):
                self.replacement = Replacement(self.path, RUN)
                self._move(self.replacement.new)
            (self.path / "model").mkdir(parents=True)
        except OSError as error:
            raise RunDirectoryError(
                f"out: {self.path} cannot be made ({error.strerror})"
            ) from error

    def take_place(self) -> None:
        """Take the place of the run that is to be replaced, if there is one: this one has begun.

        Raises:
            CheckpointError: It cannot, and that one stays.
        """
        if self.replacement is None:
            return
        self.checkpoints.writer.wait()
        replacement = self.replacement
        try:
            replacement.swap()
        except OSError as error:
            raise CheckpointError(
                f"out: {replacement.place} could not be replaced ({error.strerror})"
            ) from error
        self._move(replacement.place)
        self._end_replacement()

    def _move(self, path: Path) -> None:
        self.path = path
        self.log.path = path / "metrics.jsonl"
        self.checkpoints.ledger_file.folder = path

    def _end_replacement(self) -> None:
        if self.replacement is not None:
            self.replacement.close()
            self.replacement = None

    def reopen(self, last_rounds: int) -> Checkpoint:
        """Return the last checkpoint; :meth:`go_on` follows when nothing more is to be checked.

        Args:
            last_rounds: The key; with another than the run's own, a finished run is extended.

        Raises:
            RunDirectoryError: The folder is no run, its run cannot be resumed or extended, or
                another process is at work on it.
            ConfigurationError: ``config.toml`` was changed since.
            CheckpointError: It has no checkpoint, or a damaged one.
        """
        extends = last_rounds != stored_config(self.path).last_rounds
        stored = check_resumable(self.path, extends=extends)
        self._lock()
        try:
            checkpoint = read_checkpoint(self.checkpoints.path)
            with named_damage(self.checkpoints.path):
                check_unchanged(self.path, stored, checkpoint)
                self.checkpoints.config = fixed_values(stored)
                self.checkpoints.seconds_before = float(checkpoint.facts["seconds"])
                if extends:
                    check_longer(self.path, last_rounds, checkpoint)
        except BaseException:
            self.close()
            raise
        return checkpoint

    def read_ledger(self, checkpoint: Checkpoint) -> TrafficLedger:
        """Return the account of bytes that a checkpoint from :meth:`reopen` names.

        Raises:
            CheckpointError: It is absent or damaged.
        """
        with named_damage(self.checkpoints.path):
            return self.checkpoints.ledger_file.read(checkpoint.facts["ledger"])

    def go_on(self, checkpoint: Checkpoint, config: RunConfig) -> None:
        """Cut the history back to a checkpoint; a finished run gives up its result.

        Args:
            checkpoint: From :meth:`reopen`.
            config: Of this attempt; the run takes its ``last-rounds``.

        Raises:
            CheckpointError: A file could not be written, or the checkpoint is damaged.
        """
        for left in self.path.rglob("*.part"):  # by a process that was killed as it wrote
            left.unlink(missing_ok=True)
        # First: interrupted from here on, the run is one to resume.
        (self.path / "result.json").unlink(missing_ok=True)
        stored = stored_config(self.path)
        if config.last_rounds != stored.last_rounds:
            self._write_config(replace(stored, last_rounds=config.last_rounds))
        with named_damage(self.checkpoints.path):
            self.checkpoints.ledger_file.remove_others(int(checkpoint.facts["ledger"]["number"]))
            self._cut_history(checkpoint)

    def _write_config(self, config: RunConfig) -> None:
        values = {k: v for k, v in config_values(config).items() if k not in PLACE_KEYS}
        replace_file(self.path / "config.toml", tomli_w.dumps(values).encode())

    def _cut_history(self, checkpoint: Checkpoint) -> None:
        """Cut ``metrics.jsonl`` back to a checkpoint; a shorter one is noticed and continued."""
        named_bytes = int(checkpoint.facts["metrics_bytes"])
        left_bytes = self.log.cut_back(named_bytes)
        self.lost_rounds = self.log.lacking(told_rounds(checkpoint.facts))
        if left_bytes != named_bytes:
            # What is written from here on must not be taken for what was lost.
            facts = {**checkpoint.facts, "metrics_bytes": left_bytes}
            write_checkpoint(
                self.checkpoints.path, Checkpoint(facts=facts, tensors=checkpoint.tensors)
            )

    def _lock(self) -> None:
        """Hold the run for this process; the system releases it when the process ends."""
        self._held = lock_run(self.path / "config.toml")

    def remove(self) -> None:
        """Remove the folder of a run that did not start."""
        shutil.rmtree(self.path, ignore_errors=True)

    def close(self) -> None:
        """Release the run, once what is being written is on the disk."""
        self.checkpoints.writer.close()
        self._end_replacement()
        if self._held is not None:
            self._held.close()
            self._held = None

    # ---- during the run -------------------------------------------------------------------------

    def write_layer(
        self, facts: LayerFacts, tensors: Mapping[str, np.ndarray], *, refined: bool = False
    ) -> None:
        """Write the selected weights of a stage to ``model/layer-STAGE.safetensors``.

        Those of a refinement stand beside them, which a resume reads, too.
        """
        path = (refined_path if refined else layer_path)(self.path, facts.stage)
        write_layer_file(path, facts, tensors)

    def read_layer(self, stage: int) -> dict[str, np.ndarray]:
        """Read what :meth:`write_layer` wrote.

        Raises:
            CheckpointError: The file is missing or damaged.
        """
        _, tensors = read_layer_file(layer_path(self.path, stage))
        return tensors

    def write_floor(self, facts: LayerFacts, tensors: Mapping[str, np.ndarray]) -> None:
        """Write the last layer that is kept in place of the trained one."""
        write_layer_file(floor_path(self.path), facts, tensors)

    def write_columns(self, columns: np.ndarray, *, features: int, classes: int) -> None:
        """Write what makes features of columns, as it travels, to ``model/columns.safetensors``."""
        facts = LayerFacts(stage=0, features=features, classes=classes, is_structural=True)
        write_layer_file(columns_path(self.path), facts, {"columns": columns})

    def read_columns(self) -> np.ndarray:
        """Return what :meth:`write_columns` wrote.

        Raises:
            CheckpointError: The file is missing or damaged.
        """
        return read_flat_file(columns_path(self.path), "columns")[1]

    def write_basis(self, basis: np.ndarray, *, features: int, classes: int) -> None:
        """Write what features are mapped by, as it travels, to ``model/basis.safetensors``."""
        facts = LayerFacts(stage=0, features=features, classes=classes)
        write_layer_file(basis_path(self.path), facts, {"basis": basis})

    def read_basis(self) -> np.ndarray:
        """Return the basis that :meth:`write_basis` wrote.

        Raises:
            CheckpointError: The file is missing or damaged.
        """
        _, basis = read_basis_file(basis_path(self.path))
        return basis

    def write_status(self, state: str, error: str | None = None) -> None:
        """Write ``status.json``, as :func:`.run_status.write_status`.

        Raises:
            CheckpointError: It could not be written, and nothing else has ended the run.
        """
        try:
            write_status(self.path, state, error)
        except OSError as problem:
            # What ended the run, such as a full disk, must not be hidden by a second complaint.
            if state not in ("failed", "interrupted"):
                raise CheckpointError(
                    f"{self.path / 'status.json'}: could not be written ({problem.strerror})"
                ) from problem
            logger.debug("%s: status.json was not written", self.path, exc_info=True)

    # ---- the end --------------------------------------------------------------------------------

    def finish(self, result: Result, ledger: TrafficLedger) -> None:
        """Write ``ledger.csv`` and ``result.json``.

        Raises:
            CheckpointError: One of them, or the last checkpoint, could not be written.
        """
        self.checkpoints.writer.wait()
        replace_file(self.path / "ledger.csv", ledger.to_csv().encode())
        replace_file(self.path / "result.json", result_text(result).encode())
        self.take_place()


def check_free(path: Path, *, overwrite: bool = False) -> None:
    """Refuse a run directory that holds anything, or that cannot be made.

    Args:
        path: The directory.
        overwrite: A run that it holds, and nothing else, is to be replaced.

    Raises:
        RunDirectoryError: Names what is there and what to do.
    """
    try:
        if overwrite and is_taken(path):
            check_replaceable(path, RUN)
            return
        if (path / "config.toml").exists():
            raise RunDirectoryError(
                f"out: {path} holds another run; choose another directory, or replace that run "
                f"with --overwrite{_or_resume(path)}"
            )
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise RunDirectoryError(
                f"out: {path} exists and is not an empty directory; expected a new one"
            )
    except OSError as error:
        raise RunDirectoryError(f"out: {path} cannot be used ({error.strerror})") from error
    ancestor = next(folder for folder in (path, *path.parents) if folder.exists())
    if not ancestor.is_dir() or not os.access(ancestor, os.W_OK | os.X_OK):
        raise RunDirectoryError(
            f"out: {path} cannot be made; expected {ancestor} to be a directory that can be "
            "written to"
        )


def _or_resume(path: Path) -> str:
    resumable = (path / "checkpoint.safetensors").exists() and not (path / "result.json").exists()
    return f", or go on with that run by `retexo run --resume {path}`" if resumable else ""


def stored_config(path: Path) -> RunConfig:
    """Return the configuration of the run in ``path``.

    Raises:
        RunDirectoryError: It holds no run.
    """
    try:
        present = (path / "config.toml").is_file()
    except OSError as error:
        raise RunDirectoryError(f"resume: {path} cannot be used ({error.strerror})") from error
    if not present:
        raise RunDirectoryError(
            f"resume: {path} holds no run (config.toml is missing); expected a run directory"
        )
    return make_config(read_config_file(path / "config.toml"))


def check_resumable(path: Path, *, extends: bool = False) -> RunConfig:
    """Return the configuration of the run in ``path`` if it can be resumed.

    Args:
        path: A run directory.
        extends: Whether its last stage is to have more rounds than it had.

    Raises:
        RunDirectoryError: It holds no run, one without a checkpoint, or one that has finished; or
            it is to be extended, and has not finished or had no rounds.
    """
    stored = stored_config(path)
    is_finished = (path / "result.json").exists()
    if is_finished and not extends:
        correct_status(path)
        raise RunDirectoryError(f"resume: the run in {path} has finished; there is nothing to do")
    if extends and not is_finished:
        raise RunDirectoryError(f"extend: the run in {path} has not finished; resume it first")
    if extends:
        check_extended(stored, path)
    if not (path / "checkpoint.safetensors").is_file():
        raise RunDirectoryError(
            f"resume: {path} has no checkpoint yet; start the run again, in a new directory or "
            "there with --overwrite"
        )
    return stored


def default_path(config: RunConfig) -> Path:
    """Return a new folder name below ``runs`` in the present directory."""
    name = config.graph_name.replace(":", "-")
    stamp = datetime.now().astimezone().strftime("%Y%m%d-%H%M%S")
    stem = f"{name}-{config.model.replace(':', '-')}-{stamp}"
    path = Path("runs") / stem
    number = 2
    while path.exists():
        path = Path("runs") / f"{stem}-{number}"
        number += 1
    return path.absolute()
