"""Finds the client that a message is for, in a process that may be a client's first or hundredth.

Flower's simulation runs fewer worker processes than clients and gives any of them any message.
What a client needs is therefore kept in a folder that all workers share: the parts, each client's
store and the spool of blocks.
"""

from __future__ import annotations

import fcntl
import os
import platform
import shutil
import tempfile
import time
from collections import OrderedDict
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

from retexo_fl.channels import Channel, SharingChannel, SpoolChannel
from retexo_fl.client.client import GraphClient
from retexo_fl.client.graph_sizes import count_sizes
from retexo_fl.client.log_lines import DeviceLog
from retexo_fl.client.memory_estimate import rows_bytes
from retexo_fl.client.noise import KEY_FILE, SECRET_BYTES, add_noise, client_secret, secret_in
from retexo_fl.client.preparation import make_parts
from retexo_fl.client.store import ClientStore, FolderStore, MemoryStore, SharedWeights
from retexo_fl.config import RunConfig
from retexo_fl.device_names import processes_for
from retexo_fl.errors import ConfigurationError, EngineFailed, PartitionError
from retexo_fl.graph.parts.partition import GraphPartition
from retexo_fl.graph.parts.storage import open_partition, write_partitions
from retexo_fl.methods.clients import check_by_message, client_class
from retexo_fl.process_memory import available_bytes

#: Names the folder to workers that got none by an argument, as those of `flwr run`.
SCRATCH_VARIABLE: Final = "RETEXO_SCRATCH"
#: The folder of parts in it, made once by the first worker, or by the command.
PARTS_NAME: Final = "parts"
_LOCK_NAME: Final = "parts.lock"
#: The folder of weights that all clients hold.
_HELD_NAME: Final = "held"
#: Share of the memory of clients that workers keep between messages; the rest is for the workers
#: themselves, Flower and Ray.
_KEPT_SHARE: Final = 0.5
#: Longest time for which one worker may cut the graph while others wait for its parts.
_PREPARATION_TIMEOUT_S: Final = 1800.0


class InProcessClients:
    """All clients of a job in one process, their mailboxes in its memory.

    ``predictions`` is where they write what they predict, ``channel`` how their blocks travel. Rows
    that cross are kept in ``folder``, if there is one, and not in memory; it is removed when the
    clients are closed.
    """

    def __init__(
        self,
        parts: list[GraphPartition],
        config: RunConfig,
        *,
        predictions: Path | None = None,
        channel: Channel | None = None,
        folder: Path | None = None,
    ) -> None:
        self._parts = parts
        self._folder = folder
        if folder is not None:
            # Of an attempt that was killed; what a power cut left of it is not to be believed.
            shutil.rmtree(folder, ignore_errors=True)
        self._config = config
        self._predictions = predictions
        self._channel: Channel = SharingChannel() if channel is None else channel
        self._clients: dict[tuple[str, int], GraphClient] = {}
        self._log = None if predictions else _device_log(config)

    def find(self, job: str, client: int) -> GraphClient:
        """Return a client of a job, making it at its first message."""
        key = (job, client)
        if key not in self._clients:
            predicts = self._predictions is not None
            self._clients[key] = client_class(self._config, predicts=predicts)(
                self._parts[client],
                self._config,
                job=job,
                channel=self._channel,
                store=self._store(job, client),
                predictions=self._predictions,
            )
            if self._config.has_noise:
                _add_noise(self._clients[key], self._config, client)
            if self._folder is not None:
                # Vectors become what a stage trains on at once: memory has those of one client.
                self._clients[key].crossing.mailbox.reads_once = True
        return self._clients[key]

    def close(self) -> None:
        """Release all devices, and what is kept on disk."""
        for client in self._clients.values():
            client.close()
        if self._log is not None:
            self._log.close()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _store(self, job: str, client: int) -> ClientStore:
        if self._folder is None:
            return MemoryStore()
        return FolderStore(self._folder / "clients" / job / str(client))


class WorkerClients:
    """Clients in the worker processes of Flower's simulation, sharing a scratch folder.

    Any message may reach any worker, so each keeps every client in time, while memory lasts.

    Args:
        predictions: Where they write what they predict; None of a training.
        scratch: The folder; None for that of the run, on this machine.
        parts: Of all clients; None for what the configuration names, or is made in the folder.
    """

    def __init__(
        self,
        predictions: Path | None = None,
        scratch: Path | None = None,
        parts: Path | None = None,
    ) -> None:
        self._predictions = predictions
        self._scratch = scratch
        self._parts = parts
        self._clients: OrderedDict[tuple[str, int], tuple[GraphClient, float]] = OrderedDict()
        self._kept_bytes = 0.0
        self._held: dict[str, SharedWeights] = {}
        self._log: DeviceLog | None = None

    def find(self, config: RunConfig, *, job: str, client: int, run_id: int) -> GraphClient:
        """Return a client of a job; the least recently used are dropped where memory ends."""
        key = (job, client)
        known = self._clients.get(key)
        if known is not None and not known[0].has_keys_of(config):
            # The server has settled keys since; all else is in the store.
            self._clients.pop(key)[0].close()
            self._kept_bytes -= known[1]
        if key not in self._clients:
            if self._log is None and self._predictions is None:
                self._log = _device_log(config)
            self._keep(key, *self._make(config, job, client, self._scratch_of(run_id)))
            self._drop_beyond(_KEPT_SHARE * available_bytes() / processes_for(config.clients))
        self._clients.move_to_end(key)
        return self._clients[key][0]

    def _scratch_of(self, run_id: int) -> Path:
        if self._scratch is None:
            return scratch_folder(run_id)
        for folder in filter(None, (self._scratch, self._parts)):
            if not folder.is_dir():
                raise PartitionError(
                    f"{folder}: is not there on the node {platform.node()}; expected a folder that "
                    "all nodes of the Ray cluster have at this path"
                )
        return self._scratch

    def _keep(self, key: tuple[str, int], client: GraphClient, size_bytes: float) -> None:
        self._clients[key] = client, size_bytes
        self._kept_bytes += size_bytes

    def _drop_beyond(self, most_bytes: float) -> None:
        while self._kept_bytes > most_bytes and len(self._clients) > 1:
            _, (dropped, size_bytes) = self._clients.popitem(last=False)
            self._kept_bytes -= size_bytes
            dropped.close()

    def _make(
        self, config: RunConfig, job: str, client: int, scratch: Path
    ) -> tuple[GraphClient, float]:
        """Make a client; return it with about how many bytes it keeps between messages."""
        predicts = self._predictions is not None
        check_by_message(config, predicts=predicts)
        parts = self._parts
        if parts is None:
            parts = Path(config.partitions) if config.partitions else _shared_parts(config, scratch)
        channel = SpoolChannel(scratch / "spool")
        if job not in self._held:
            self._held = {job: SharedWeights(scratch / _HELD_NAME / job)}
        store = FolderStore(scratch / "clients" / job / str(client), held=self._held[job])

        def forget() -> None:
            channel.forget_job(job, client)
            store.forget()
            _leave(scratch, job, client)

        part = open_partition(parts / f"part-{client}")
        made = client_class(config, predicts=predicts)(
            part,
            config,
            job=job,
            channel=channel,
            store=store,
            on_forget=forget,
            predictions=self._predictions,
        )
        made.count_sizes = partial(count_sizes, part, config)
        if config.has_noise:
            _add_noise(made, config, client)
        # At its peak. Between messages 2,708 clients of a node each keep 29 kB of 44, 50 of 54
        # nodes .8 MB of 2.1.
        return made, rows_bytes(config, part)


def _add_noise(made: GraphClient, config: RunConfig, client: int) -> None:
    """Have a simulated client's noise follow from the run's secret: a resume sends the same."""
    drawn, run = os.urandom(SECRET_BYTES), config.resume or config.out

    def secret() -> bytes:
        # The directory is made after the clients.
        return client_secret(secret_in(Path(run) / KEY_FILE) if run else drawn, client)

    add_noise(made, config, secret)


def _device_log(config: RunConfig) -> DeviceLog | None:
    """Open the run's log of devices, where it has more than the client's own process."""
    run = config.resume or config.out
    if not run or config.devices == "cpu":
        return None
    return DeviceLog(Path(run), is_new=not config.resume)


def _leave(scratch: Path, job: str, client: int) -> None:
    """Remove a client's copy of its part; the last client to leave removes the folders."""
    shutil.rmtree(scratch / PARTS_NAME / f"part-{client}", ignore_errors=True)
    for name in (PARTS_NAME, f"clients/{job}", "clients", f"spool/{job}", "spool"):
        with suppress(OSError):
            (scratch / name).rmdir()
    if not any((scratch / name).exists() for name in (PARTS_NAME, "clients", "spool")):
        shutil.rmtree(scratch / _HELD_NAME, ignore_errors=True)
        (scratch / _LOCK_NAME).unlink(missing_ok=True)
        with suppress(OSError):
            scratch.rmdir()


def scratch_folder(run_id: int) -> Path:
    """Return the folder that the workers of one Flower run share; only its owner may enter it.

    Raises:
        ConfigurationError: The folder belongs to another user.
    """
    named = os.environ.get(SCRATCH_VARIABLE)
    if named:
        folder = Path(named)
    else:
        folder = Path(tempfile.gettempdir()) / f"retexo-fl-{os.getuid()}" / str(run_id)
    root = folder if named else folder.parent
    with suppress(FileExistsError):  # Also a link to nothing.
        root.mkdir(mode=0o700, parents=True)
    if root.lstat().st_uid != os.getuid() or root.is_symlink():
        raise ConfigurationError(f"{root}: belongs to another user; set {SCRATCH_VARIABLE}")
    root.chmod(0o700)
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def _shared_parts(config: RunConfig, scratch: Path) -> Path:
    """Cut the graph once for all workers: the first to come does it, the others wait."""
    parts = scratch / PARTS_NAME
    with (scratch / _LOCK_NAME).open("w") as lock:
        deadline = time.monotonic() + _PREPARATION_TIMEOUT_S
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if time.monotonic() > deadline:
                    raise EngineFailed(
                        f"{scratch}: another worker has been cutting the graph for "
                        f"{_PREPARATION_TIMEOUT_S:g} s; cut it beforehand with "
                        "`retexo partition make`"
                    ) from error
                time.sleep(0.1)
        if not parts.exists():
            write_partitions(make_parts(config), parts)
    if not parts.is_dir():
        raise PartitionError(f"{parts}: expected the parts that were written there")
    return parts
