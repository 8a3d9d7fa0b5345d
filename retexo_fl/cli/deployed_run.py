"""``retexo run --superlink``: a training by a SuperLink and clients on machines of their own."""

from __future__ import annotations

import re
import subprocess
import tempfile
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from retexo_fl.api.flower_run import follow, mark_of, named_error, note_end, state_of, status_of
from retexo_fl.cli.sentences import complain
from retexo_fl.cli.superlink import Address, RunState, SuperLink
from retexo_fl.config import RunConfig, config_values
from retexo_fl.errors import ConfigurationError, EngineFailed, RunDirectoryError
from retexo_fl.progress import LiveTable
from retexo_fl.run_log.events import EVENTS, Event
from retexo_fl.run_status import ACTIVE

if TYPE_CHECKING:
    from retexo_fl.config.profiles import Fitting
    from retexo_fl.progress.prediction import PredictionTable
    from retexo_fl.run_log.profile import ChosenProfile
    from retexo_fl.simulation.flower_bundle import BundleApps

#: Between looks at the run directory.
_LOOK_S: Final = 0.2
#: The SuperLink is asked once nothing has been heard of a run for so long: a question starts a
#: program of Flower's, seconds of CPU.
_ASK_AFTER_S: Final = 10.0
#: Likewise as long as Flower's log is open, which ends with the run and with its SuperLink: only a
#: link that was cut without a word has to be noticed by asking.
_ASK_WHILE_LOGGED_S: Final = 60.0
#: A SuperLink that cannot be reached for so long has been lost.
_LOST_AFTER_S: Final = 60.0
#: Time for the ServerApp to write down how it ended, and for the rest of the log to come.
_END_GRACE_S: Final = 10.0
_LOG_LINES: Final = 40
#: Flower ends a ServerApp in the same way when its SuperLink does not answer any longer.
_STOPPED: Final = "the run was stopped, or its SuperLink ended"
_ANSI: Final = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True, slots=True, kw_only=True)
class EventFile:
    """Where a ServerApp writes what happens.

    Attributes:
        name: Of the file, in the folder that the ServerApp writes.
        kinds: Of its events, by name.
    """

    name: str
    kinds: Mapping[str, type[Event]]


_HISTORY: Final = EventFile(name="metrics.jsonl", kinds=EVENTS)


def run_deployed(  # noqa: PLR0913 - a run has so much
    config: RunConfig,
    run_path: Path,
    table: LiveTable,
    *,
    address: Address,
    quiet: bool = False,
    profile: ChosenProfile | None = None,
    fitting: Fitting | None = None,
    overwrite: bool = False,
    listeners: Sequence[Callable[[Event], None]] = (),
) -> bool:
    """Have a SuperLink run the training, and watch it.

    Where the run directory is on this machine its events are shown; else Flower's own log.

    Args:
        config: With ``out`` or ``resume`` absolute.
        run_path: Run directory, where the SuperLink runs.
        table: Shows the run's events.
        address: Of the SuperLink.
        quiet: Show nothing.
        profile: Of a new run.
        fitting: What of a new run is fitted to the clients' graph.
        overwrite: Have it replace a run that is in its directory, where the SuperLink runs.
        listeners: Called with every event, where the run directory is on this machine.

    Returns:
        Whether the run directory is on this machine.

    Raises:
        RetexoError: A failure of the training, of the class that its ServerApp raised.
        ConfigurationError: The SuperLink cannot be reached.
        EngineFailed: It was lost, or its run was stopped.
    """
    from retexo_fl.file_lock import lock_run
    from retexo_fl.simulation.flower_bundle import training_apps

    check_superlink(address)
    if config.resume:
        # Released at once: the ServerApp takes it.
        lock_run(run_path / "config.toml").close()
    apps = training_apps(profile, fitting=fitting, overwrite=overwrite)
    return run_apps(
        config, run_path, table, address=address, quiet=quiet, apps=apps, listeners=listeners
    )


def run_apps(  # noqa: PLR0913 - as above
    config: RunConfig,
    run_path: Path,
    table: LiveTable | PredictionTable,
    *,
    address: Address,
    quiet: bool = False,
    apps: BundleApps | None = None,
    events: EventFile = _HISTORY,
    listeners: Sequence[Callable[[Event], None]] = (),
) -> bool:
    """Have a SuperLink run a bundle, and watch it; as :func:`run_deployed`.

    Args:
        config: Of the bundle.
        run_path: Run directory that it writes; or what else it makes, without events.
        table: Shows its events.
        address: Of the SuperLink.
        quiet: Show nothing.
        apps: Source of its components; None for those that train.
        events: That it writes there.
        listeners: Called with each of these, too.
    """
    from retexo_fl.simulation.flower_bundle import write_bundle

    with tempfile.TemporaryDirectory(prefix="retexo-") as name:
        folder = Path(name)
        superlink = SuperLink(address, folder / "home")
        bundle = write_bundle(folder, config_values(config), apps=apps)
        before = mark_of(run_path / "status.json")
        run_id = superlink.submit(bundle)
        with ExitStack() as stack:
            watch = _Watch(
                run_path=run_path,
                before=before,
                table=table,
                quiet=quiet,
                is_new=not config.resume,
                stack=stack,
                events=events,
                listeners=listeners,
            )
            log = stack.enter_context((folder / "run.log").open("wb"))
            stream = superlink.follow_log(run_id, log)
            stack.callback(_end, stream)
            watch.follow_log(folder / "run.log", stream)
            _attend(superlink, run_id, watch)
        return watch.is_here


def _attend(superlink: SuperLink, run_id: str, watch: _Watch) -> None:
    """Watch a run to its end, and see to it that it ends when it is no longer wanted."""
    try:
        _watch_to_end(superlink, run_id, watch)
    except KeyboardInterrupt:
        _stop(superlink, run_id, watch)
        raise
    except EngineFailed as failure:
        told = EngineFailed(f"{failure}\n{watch.log}")
        named = named_error(told, watch.run_path, watch.before, is_new=watch.is_new)
        raise _explained(named) from failure


def check_superlink(address: Address) -> None:
    """Find out at once, and in words, that a SuperLink cannot be reached.

    Raises:
        ConfigurationError: The address is none, nothing answers there, or it is not who its
            certificate says.
    """
    from retexo_fl.doctor.finding import Verdict
    from retexo_fl.doctor.superlink import examine_superlink

    for finding in examine_superlink(address.url, address.root_certificates):
        if finding.thing in {"superlink", "TLS"} and finding.verdict is Verdict.BAD:
            raise ConfigurationError(f"superlink: {finding.seen}; {finding.advice}")


@dataclass(slots=True, kw_only=True)
class _Watch:
    """Shows a run: its events where its directory is here, until then Flower's log.

    Attributes:
        is_new: Whether what is there before is of another run.
        is_here: Whether this attempt writes its directory on this machine.
        heard_s: When the run was last heard of (:func:`time.monotonic`).
    """

    run_path: Path
    before: object
    table: LiveTable | PredictionTable
    quiet: bool
    stack: ExitStack
    events: EventFile = _HISTORY
    listeners: Sequence[Callable[[Event], None]] = ()
    is_new: bool = False
    is_here: bool = False
    heard_s: float = field(init=False, default_factory=time.monotonic)
    _failed: bool = False
    _lines: deque[str] = field(default_factory=lambda: deque(maxlen=_LOG_LINES))
    _look_at_events: Callable[[], None] = field(init=False)
    _log: Callable[[], None] = field(init=False, default=lambda: None)
    _streams: Callable[[], bool] = field(init=False, default=lambda: False)

    def __post_init__(self) -> None:
        from retexo_fl.federation.checkpoints import read_checkpoint

        checkpoint = self.run_path / "checkpoint.safetensors"
        # A resumed run cuts its history back to the checkpoint before it continues.
        begin = 0
        if not self.is_new and checkpoint.exists():
            begin = read_checkpoint(checkpoint).facts["metrics_bytes"]
        self._look_at_events = follow(
            self.run_path / self.events.name,
            self._show,
            kinds=self.events.kinds,
            begin=int(begin),
        )

    @property
    def log(self) -> str:
        """The end of Flower's log."""
        return "\n".join(self._lines)

    def follow_log(self, path: Path, stream: subprocess.Popen[bytes]) -> None:
        """Take lines from a log that a process writes from now on."""
        position = 0
        self._streams = lambda: stream.poll() is None

        def look() -> None:
            nonlocal position
            with path.open("rb") as file:
                file.seek(position)
                text = file.read()
            whole = text[: text.rfind(b"\n") + 1]
            position += len(whole)
            for line in whole.decode(errors="replace").splitlines():
                self._take(_ANSI.sub("", line))

        self._log = look

    def look(self) -> None:
        """Show what is new."""
        self._log()
        if not self.is_here and mark_of(self.run_path / "status.json") != self.before:
            self.is_here = True
            self.stack.enter_context(self.table)
        if self.is_here:
            self._look_at_events()

    @property
    def ask_after_s(self) -> float:
        """How long the run may be silent before its SuperLink is asked."""
        return _ASK_WHILE_LOGGED_S if self._streams() else _ASK_AFTER_S

    @property
    def expects_more(self) -> bool:
        """Whether there may still be something to show of a run that has ended."""
        return self.state in ACTIVE or (not self.is_here and self._streams())

    @property
    def state(self) -> str | None:
        """What this attempt has written of its state; None where it has not, or not here."""
        return state_of(self.run_path) if self.is_here else None

    @property
    def ended_by(self) -> str:
        """What has ended an attempt that wrote that it was interrupted, or failed."""
        reason = status_of(self.run_path)[1] if self.is_here else ""
        return reason or _STOPPED

    def _show(self, event: Event) -> None:
        self.heard_s = time.monotonic()
        for listener in (self.table.handle, *self.listeners):
            listener(event)

    def _take(self, line: str) -> None:
        self.heard_s = time.monotonic()
        self._lines.append(line)
        # What follows a line of an error is its traceback; one line at the end sums it up.
        self._failed = self._failed or line.startswith("ERROR")
        if not (self.is_here or self.quiet or self._failed) and line.strip():
            complain(line)


def _watch_to_end(superlink: SuperLink, run_id: str, watch: _Watch) -> None:
    """Return when the run has completed; anything else raises."""
    asked_s = answered_s = time.monotonic()
    while True:
        watch.look()
        if watch.state == "finished":
            return
        if watch.state in {"failed", "interrupted"}:
            raise EngineFailed(watch.ended_by)
        if time.monotonic() - max(asked_s, watch.heard_s) >= watch.ask_after_s:
            try:
                state = superlink.state(run_id)
                answered_s = time.monotonic()
            except EngineFailed as failure:
                _note_silence(failure, time.monotonic() - max(answered_s, watch.heard_s))
            else:
                if state.ended:
                    _judge(state, watch)
                    return
            asked_s = time.monotonic()
        time.sleep(_LOOK_S)


def _note_silence(failure: EngineFailed, silent_s: float) -> None:
    """Continue while a SuperLink may only be out of reach for a moment."""
    if "not found" in str(failure):
        raise EngineFailed(
            "the SuperLink no longer has the run; was it restarted without --database?"
        ) from failure
    if silent_s > _LOST_AFTER_S:
        raise EngineFailed(
            f"the SuperLink has not answered for {silent_s:.0f} s; start it again"
        ) from failure


def _judge(state: RunState, watch: _Watch) -> None:
    """Wait for the ServerApp's last lines, then report how the run ended."""
    deadline = time.monotonic() + _END_GRACE_S
    while time.monotonic() < deadline and watch.expects_more:
        watch.look()
        time.sleep(_LOOK_S)
    watch.look()
    if watch.state == "interrupted":
        # The SuperLink may call that an unknown error.
        raise EngineFailed(watch.ended_by)
    if not state.completed:
        raise EngineFailed(f"the run ended as {state.status}: {' '.join(state.details.split())}")


def _stop(superlink: SuperLink, run_id: str, watch: _Watch) -> None:
    """Stop the run, and wait until its ServerApp has noted that, or note it here."""
    try:
        superlink.stop(run_id)
    except EngineFailed as failure:
        if watch.state in ACTIVE | {None}:
            complain(f"run {run_id} could not be stopped and may still be running: {failure}")
    # What was written since the last look counts as well.
    watch.look()
    deadline = time.monotonic() + 2 * _END_GRACE_S
    while time.monotonic() < deadline and watch.state in ACTIVE:
        watch.look()
        time.sleep(_LOOK_S)
    note_end(watch.run_path, watch.before, "interrupted", None)
    _wait_until_free(watch)


def _wait_until_free(watch: _Watch) -> None:
    """Wait for the end of the ServerApp's process, so that a resume at once finds the run free."""
    from retexo_fl.file_lock import lock_run

    config_path = watch.run_path / "config.toml"
    if not config_path.exists():
        return
    try:
        lock_run(config_path, within_s=_END_GRACE_S).close()
    except RunDirectoryError as busy:
        complain(f"{busy}; wait for it to end before a resume")


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(timeout=_END_GRACE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _explained(error: Exception) -> Exception:
    """Say which user writes a run directory, where it could not be written."""
    if isinstance(error, RunDirectoryError):
        return RunDirectoryError(f"{error} (on the SuperLink's machine, by its user)")
    return error
