"""A run's figures as a file for Prometheus: what the textfile collector of its node exporter reads.

A run is a process that ends, maybe within a minute: a port of its own would have to be found by
Prometheus each time, and would be gone before it was read. The file stays, with how it ended.
"""

from __future__ import annotations

import errno
import logging
import os
import time
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryFile
from typing import Final

from retexo_fl.errors import ConfigurationError
from retexo_fl.run_log.events import (
    Event,
    Finished,
    Moved,
    RoundClosed,
    StageClosed,
    Started,
    Waiting,
)

logger = logging.getLogger(__name__)

_ENDING: Final = ".prom"
#: Of gauges: by name, what they say.
_GAUGES: Final = {
    "attempt": "Of the run, from 1.",
    "clients": "That take part.",
    "stages": "That are trained in all.",
    "stage": "That is trained, from 0.",
    "round": "Of the stage that was validated last, from 1.",
    "rounds_limit": "That the stage may take.",
    "absent_clients": "Without whose answers the last round was closed.",
    "waiting_clients": "That are waited for now.",
    "loss": "Mean training loss of the last round.",
    "validation_loss": "Of the last round's weights.",
    "validation_accuracy": "Of the last round's weights.",
    "round_seconds": "That the last round took.",
    "finished": "1 once the model is tested.",
    "test_accuracy": "Of the selected model.",
    "last_event_timestamp_seconds": "Unix time of what is written here.",
}
_COUNTERS: Final = {
    "closed_rounds": "Rounds that were closed, over all stages of this attempt.",
    "payload_bytes": "That the run has moved, without headers.",
    "waited_seconds": "Of this attempt's rounds, waiting for clients.",
}


@dataclass(slots=True)
class PrometheusFile:
    """A callback that keeps a file up to date, whole at any moment; one label, ``run``.

    It is written from the run's first event on: what an earlier run left stays until this one has
    begun. What keeps it from being written then is said once, and ends no training.

    Attributes:
        path: Ends in ``.prom``.
        run: The label, different for each run of one machine, such as the directory's name.

    Raises:
        ConfigurationError: The file cannot be written, or prometheus-client is not installed.
    """

    path: Path
    run: str
    _values: dict[str, float] = field(init=False, default_factory=dict)
    _has_failed: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        """Refuse before a training what can be known to keep the file from being written."""
        self.path = Path(self.path)
        if find_spec("prometheus_client") is None:
            raise ConfigurationError(
                "metrics-file: needs prometheus-client, which is not installed; expected the extra "
                "'watch' of retexo-fl"
            )
        if self.path.suffix != _ENDING:
            raise ConfigurationError(
                f"metrics-file: got {self.path}; expected a name that ends in {_ENDING}, which is "
                "what node_exporter reads"
            )
        self._values = dict.fromkeys(_COUNTERS, 0.0) | {"finished": 0.0}
        try:
            # It is made beside the file and takes its place.
            TemporaryFile(dir=self.path.parent).close()
            if self.path.is_dir():
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        except OSError as error:
            raise ConfigurationError(
                f"metrics-file: {self.path} cannot be written ({error.strerror})"
            ) from error

    def __call__(self, event: Event, /) -> None:
        """Take what an event says."""
        self._take(event)
        try:
            self._write()
        except OSError as error:
            if not self._has_failed:
                logger.warning(
                    "metrics-file: %s could not be written (%s); the training goes on",
                    *(self.path, error.strerror),
                )
            self._has_failed = True

    def _take(self, event: Event) -> None:
        self._set("waiting_clients", len(event.clients) if isinstance(event, Waiting) else 0)
        if isinstance(event, Moved):
            self._set("payload_bytes", event.bytes_payload)
        match event:
            case Started():
                self._set("attempt", event.attempt)
                self._set("clients", event.clients - len(event.absent))
                self._set("stages", event.stages)
            case RoundClosed():
                self._set("stage", event.stage)
                self._set("round", event.round)
                self._set("rounds_limit", event.rounds)
                self._set("absent_clients", len(event.absent))
                self._set("loss", event.loss)
                self._set("validation_loss", event.val_loss)
                self._set("validation_accuracy", event.val_accuracy)
                self._set("round_seconds", event.seconds)
                self._values["closed_rounds"] += 1
                self._values["waited_seconds"] += event.waited_s or 0.0
            case StageClosed():
                self._set("stage", event.stage)
            case Finished():
                self._set("finished", 1)
                self._set("test_accuracy", event.test_accuracy)

    def _set(self, name: str, value: float | None) -> None:
        """Note a figure; one that is not known keeps what it was."""
        if value is not None:
            self._values[name] = float(value)

    def _write(self) -> None:
        # Imported by runs that are watched alone.
        from prometheus_client import CollectorRegistry, Gauge, write_to_textfile
        from prometheus_client.core import CounterMetricFamily

        values, run = self._values, self.run
        values["last_event_timestamp_seconds"] = time.time()
        registry = CollectorRegistry()
        for name, told in _GAUGES.items():
            if name in values:
                gauge = Gauge(f"retexo_run_{name}", told, ["run"], registry=registry)
                gauge.labels(run).set(values[name])

        class Counted:
            def collect(self) -> list[CounterMetricFamily]:
                families = []
                for name, told in _COUNTERS.items():
                    family = CounterMetricFamily(f"retexo_run_{name}", told, labels=["run"])
                    family.add_metric([run], values[name])
                    families.append(family)
                return families

        registry.register(Counted())
        # It takes the place of the one before; node_exporter reads as another user.
        write_to_textfile(str(self.path), registry)
        self.path.chmod(0o644)
