"""A run and its directory as Python sees them, and what is called while it goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol, Self, TypeAlias

from retexo_fl.api.rows import Rows
from retexo_fl.api.settling import Asked, resumed, settled
from retexo_fl.api.spelling import words_of_python
from retexo_fl.api.training import (
    Training,
    check_plugins,
    named_end,
    placed,
    result_of,
    say,
    what_now,
)
from retexo_fl.api.values import Partitions, asked_for, check_importable, takes_keys
from retexo_fl.config import RunConfig, config_values, make_config, named_plugins
from retexo_fl.config.file import read_config_file
from retexo_fl.errors import ConfigurationError, RetexoError, RunDirectoryError
from retexo_fl.files import file_stamp
from retexo_fl.run_log.events import Event, RoundClosed, StageClosed
from retexo_fl.run_log.result import Result
from retexo_fl.simulation.ray_cluster import ray_address_of

if TYPE_CHECKING:
    from typing import Unpack

    from retexo_fl.api.graph_model import GraphModel
    from retexo_fl.api.options import MovedOptions, RunOptions, every_key
    from retexo_fl.api.predicting import Predictions


class OnRound(Protocol):
    """A callback that is called after each round."""

    def on_round(self, event: RoundClosed, /) -> object:
        """Take a round that is over, and validated."""
        ...


class OnStage(Protocol):
    """A callback that is called after each stage."""

    def on_stage(self, event: StageClosed, /) -> object:
        """Take a stage that is trained, and whose best weights are kept."""
        ...


class OnEnd(Protocol):
    """A callback that is called when a run has finished."""

    def on_end(self, run: Run, /) -> object:
        """Take the run, whose results are on the disk."""
        ...


#: An object with one or more of these methods, or a function that is called with every event.
Callback: TypeAlias = OnRound | OnStage | OnEnd | Callable[[Event], object]

_METHODS: Final = ("on_round", "on_stage", "on_end")


@dataclass(frozen=True, slots=True)
class Run:
    """A run directory.

    Attributes:
        path: The directory.
        allow_plugins: What the configuration names as ``module:attribute`` may be imported.
    """

    path: Path
    allow_plugins: bool = False

    @classmethod
    def open(cls, folder: str | Path, *, allow_plugins: bool = False) -> Self:
        """Open a run that was trained before, finished or not.

        Args:
            folder: Its directory.
            allow_plugins: :meth:`model`, :meth:`predict`, :meth:`resume` and :meth:`extend` import
                what its configuration names as ``module:attribute``, which runs code: only where
                its author is trusted.

        Raises:
            RunDirectoryError: There is no run.
        """
        path = Path(folder).absolute()
        if not (path / "config.toml").is_file():
            raise RunDirectoryError(
                f"{path}: holds no run (config.toml is missing); expected a run directory"
            )
        return cls(path, allow_plugins)

    def __repr__(self) -> str:
        return f"<Run {str(self.path)!r}: {self._told()}>"

    def _repr_html_(self) -> str:
        from retexo_fl.api.shown import pairs_table

        try:
            pairs = self.result.headline().items()
        except RetexoError:
            pairs = {"run": self._told()}.items()
        return pairs_table("Run", [("directory", str(self.path)), *pairs])

    def _told(self) -> str:
        """Return in words how far it is; also of a directory that is damaged."""
        try:
            return self.result.told() if self.is_finished else "has not finished"
        except RetexoError as error:
            return str(error)

    @property
    def config(self) -> RunConfig:
        """The whole configuration.

        Raises:
            ConfigurationError: It cannot be read.
        """
        return make_config(read_config_file(self.path / "config.toml"))

    @property
    def is_finished(self) -> bool:
        """Whether it has finished."""
        return (self.path / "result.json").is_file()

    @property
    def result(self) -> Result:
        """How it ended: accuracies, stages, bytes, seconds.

        Raises:
            RunDirectoryError: It has not finished, or its result is damaged.
        """
        if not self.is_finished:
            raise RunDirectoryError(
                f"{self.path}: the run has not finished (result.json is missing); expected a "
                "finished one, or resume()"
            )
        return result_of(self.path)

    def history(self) -> Rows[RoundClosed]:
        """Return the rounds so far, stage by stage, each once.

        Raises:
            RunDirectoryError: The history is damaged.
        """
        from retexo_fl.report.read import read_run

        stages = read_run(self.path).course.stages
        return Rows((point for stage in stages for point in stage.points), asdict)

    def report(self) -> Path:
        """Write ``report.html`` again, also of a run that has not finished, and return its path.

        Raises:
            RunDirectoryError: A file of the run is damaged.
            CheckpointError: The report could not be written.
        """
        from retexo_fl.report import write_report

        return write_report(self.path)

    @words_of_python()
    def model(self) -> GraphModel:
        """Return the trained layers as a PyTorch module, which is called with a whole graph.

        Raises:
            RunDirectoryError: The run has not finished, or a file of the model is damaged.
            PluginError: Its configuration names what may not be imported, or cannot be.
        """
        from retexo_fl.api.graph_model import GraphModel
        from retexo_fl.federation.trained_model import read_trained_model

        return GraphModel(read_trained_model(self.path, allow_plugins=self.allow_plugins))

    @words_of_python()
    def predict(
        self,
        source: Partitions | object | None = None,
        *,
        out: str | Path | None = None,
        form: str = "csv",
        overwrite: bool = False,
        quiet: bool = False,
        ray_address: str | None = None,
        **keys: object,
    ) -> Predictions:
        """Predict as `retexo predict` does: each client its own nodes, to a file of its own.

        Args:
            source: A folder of parts, all clients' parts, a :class:`retexo_fl.graph.Graph` or a PyG
                ``Data``; None with ``nodes`` and ``edges``.
            out: Folder of the predictions; that of the parts if ``source`` is one.
            form: ``csv``, ``spreadsheet-csv``, ``parquet`` or ``npz``.
            overwrite: Replace other predictions there; without it those of the same model and parts
                are returned as they are.
            quiet: Show no progress.
            ray_address: As in :func:`run`.
            keys: Those of `retexo predict`, in snake case.

        Raises:
            InputError: Run, parts or tables cannot be used, or do not belong together.
            RetexoError: Any other named failure.
        """
        from retexo_fl.api.predicting import predict_for

        return predict_for(
            self.path,
            source,
            out=None if out is None else Path(out),
            form=form,
            overwrite=overwrite,
            allow_plugins=self.allow_plugins,
            quiet=quiet,
            ray_address=ray_address,
            keys=keys,
        )

    @words_of_python()
    def extend(
        self,
        *,
        rounds: int,
        graph: object | None = None,
        partitions: Partitions | None = None,
        callbacks: Sequence[Callback] = (),
        quiet: bool = False,
        ray_address: str | None = None,
        **moved: Unpack[MovedOptions],
    ) -> Self:
        """Train the last stage of a finished run on; its result gives way to the new one.

        That is the last layer where layers are trained one after the other, else the whole model.
        It is trained to the bits of a run whose ``last-rounds`` were so many from the start.

        Args:
            rounds: How many more, whatever ``patience``.
            graph: As in :meth:`resume`, likewise all others.
            partitions: See there.
            callbacks: See there.
            quiet: See there.
            ray_address: See there.
            moved: See there.

        Raises:
            RunDirectoryError: It has not finished, or had no rounds.
            RetexoError: As :func:`run`.
        """
        if rounds < 1:
            raise ConfigurationError(f"rounds: {rounds}; expected at least 1")
        asked = asked_for({**moved, "resume": self.path}, graph=graph, partitions=partitions)
        asked = replace(asked, extend=rounds, allow_plugins=self.allow_plugins)
        _train(asked, callbacks, quiet=quiet, ray_address=ray_address)
        return self

    @words_of_python()
    def resume(
        self,
        *,
        graph: object | None = None,
        partitions: Partitions | None = None,
        callbacks: Sequence[Callback] = (),
        quiet: bool = False,
        ray_address: str | None = None,
        **moved: Unpack[MovedOptions],
    ) -> Self:
        """Go on with an interrupted or failed run, to the bits of an undisturbed one.

        Args:
            graph: The same as in :func:`run`, where it was handed over there.
            partitions: Likewise; or the folder, where it has moved.
            callbacks: As in :func:`run`.
            quiet: Show no progress.
            ray_address: As in :func:`run`.
            moved: Keys that say where it runs or how long it waits, such as ``engine``.

        Raises:
            RunDirectoryError: It has finished, or has no checkpoint.
            RetexoError: As :func:`run`.
        """
        asked = asked_for({**moved, "resume": self.path}, graph=graph, partitions=partitions)
        asked = replace(asked, allow_plugins=self.allow_plugins)
        _train(asked, callbacks, quiet=quiet, ray_address=ray_address)
        return self


@words_of_python()
@takes_keys
def run(  # noqa: PLR0913 - each is an option
    *,
    config: str | Path | None = None,
    profile: str | None = None,
    graph: object | None = None,
    partitions: Partitions | None = None,
    callbacks: Sequence[Callback] = (),
    quiet: bool = False,
    force: bool = False,
    overwrite: bool = False,
    ray_address: str | None = None,
    **keys: Unpack[RunOptions],
) -> Run:
    """Train, and return the run: what `retexo run` does with the same keys, to the same bytes.

    Args:
        config: TOML file of keys, which ``keys`` override.
        profile: Set of keys that both override; by default that of `retexo run`.
        graph: Takes the place of ``dataset``: a :class:`retexo_fl.graph.Graph`, a PyG ``Data`` or a
            NetworkX graph.
        partitions: Folder of parts, or all clients' parts of one graph.
        callbacks: Objects with ``on_round``, ``on_stage`` or ``on_end``, or functions that are
            called with every event. What they raise ends the run, which can be resumed.
        quiet: Show no progress.
        force: Train even if memory is not enough.
        overwrite: Replace the run that is in ``out``, once this one has begun; a directory that
            holds anything else is refused.
        ray_address: ``HOST:PORT`` of a Ray cluster that is there, for ``engine="flower"``; by
            default what the environment's ``RAY_ADDRESS`` says, else a Ray of the run's own.
        keys: Of the configuration, in snake case: docs/options.md lists them.

    Raises:
        InputError: Something cannot be used; nothing was written.
        Interrupted: Ctrl-C; the message says how to go on.
        RetexoError: Any other named failure.
    """
    if TYPE_CHECKING:
        every_key(**keys)
    asked = asked_for(
        keys, config=config, profile=profile, graph=graph, partitions=partitions
    ).of_run()
    asked = replace(asked, overwrite=overwrite)
    return _train(asked, callbacks, quiet=quiet, force=force, ray_address=ray_address)


def _train(
    asked: Asked,
    callbacks: Sequence[Callback],
    *,
    quiet: bool,
    force: bool = False,
    ray_address: str | None = None,
) -> Run:
    from retexo_fl.progress import LiveTable

    listeners = _listeners_of(callbacks)
    config = resumed(asked) if "resume" in asked.values else settled(asked)
    if config.engine == "deployment":
        raise ConfigurationError(
            "engine: deployment is for `retexo run --superlink`; expected inline or flower"
        )
    if config.engine == "flower":
        check_importable(config_values(config), where="engine flower")
    cluster = ray_address_of(ray_address, config.engine)
    config, path = placed(config, overwrite=asked.overwrite)
    check_plugins(config)
    training = Training(
        config=config,
        run_path=path,
        asked=asked,
        tell=say,
        quiet=quiet,
        force=force,
        ray_address=cluster,
    )
    table = LiveTable.of_run(config, quiet=quiet)
    allowed = ", allow_plugins=True" if named_plugins(config_values(config)) else ""
    how = f"retexo_fl.Run.open({str(path)!r}{allowed}).resume()"
    replaced = file_stamp(path / "status.json") if asked.overwrite else None
    with _own_threads(), named_end(partial(what_now, path, how, replaced=replaced)):
        training.run(table, listeners)
    made = Run(path, allow_plugins=True)
    _call_at_end(callbacks, made)
    return made


def _listeners_of(callbacks: Iterable[Callback]) -> list[Callable[[Event], None]]:
    """Return what is called with every event of a run.

    Raises:
        ConfigurationError: One of them is no callback.
    """
    return [_listener(callback) for callback in callbacks]


def _call_at_end(callbacks: Iterable[Callback], run: Run) -> None:
    """Call what is called when a run has finished."""
    for callback in callbacks:
        if (on_end := getattr(callback, "on_end", None)) is not None:
            on_end(run)


def _listener(callback: Callback) -> Callable[[Event], None]:
    methods = {name: getattr(callback, name, None) for name in _METHODS}
    on_round, on_stage = methods["on_round"], methods["on_stage"]
    # With methods of these names it is no function, though it may be callable.
    of_all = callback if callable(callback) and not any(methods.values()) else None
    if of_all is None and not any(methods.values()):
        raise ConfigurationError(
            f"callbacks: got {type(callback).__name__}; expected an object with on_round, on_stage "
            "or on_end, or a function of an event"
        )

    def listen(event: Event) -> None:
        if of_all is not None:
            of_all(event)
        elif isinstance(event, RoundClosed) and on_round is not None:
            on_round(event)
        elif isinstance(event, StageClosed) and on_stage is not None:
            on_stage(event)

    return listen


@contextmanager
def _own_threads() -> Iterator[None]:
    """Leave the caller's number of threads as it is."""
    import torch

    threads = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(threads)
