"""The main function of a worker process."""

from __future__ import annotations

import ctypes
import os
import queue
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from multiprocessing import reduction
from multiprocessing.connection import Connection
from typing import Any, Final

import torch

from retexo_fl.additions.devices.workers.messages import (
    SUMS,
    WEIGHTS,
    Announce,
    Close,
    Done,
    Failed,
    Open,
    Opened,
    Ready,
    Step,
    WorkerSettings,
)
from retexo_fl.additions.devices.workers.packing import not_packed, unpack_apart
from retexo_fl.additions.devices.workers.share_runner import ShareRunner
from retexo_fl.additions.devices.workers.shared_arrays import SharedArrays

#: ``prctl`` of Linux: the signal that a process gets when its parent ends, and its name in ``ps``.
_SET_SIGNAL_OF_PARENTS_END: Final = 1
_SET_NAME: Final = 15


def work(connection: Connection, settings: WorkerSettings) -> None:
    """Serve the host until it closes the connection."""
    # The host is interrupted too, and ends its workers when it is done.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _settle_in(settings)
    messages: queue.SimpleQueue[Callable[[_Worker], None]] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(connection, messages), name="read", daemon=True).start()
    worker = _Worker(connection, settings)
    connection.send(Ready())
    while True:
        handle = messages.get()
        try:
            handle(worker)
        except Exception as error:
            connection.send(_failed(error))


class _Worker:
    def __init__(self, connection: Connection, settings: WorkerSettings) -> None:
        self._connection = connection
        self._settings = settings
        self._device = torch.device("cpu" if settings.name.startswith("cpu") else settings.name)
        self._tasks: dict[int, tuple[ShareRunner, torch.Tensor, torch.Tensor]] = {}

    def open(self, message: Open, descriptors: tuple[int, int]) -> None:
        with SharedArrays(descriptors[0], message.arrays) as shared:
            arrays, own = shared.mapped("read"), shared.mapped("copy")
        with SharedArrays(descriptors[1], message.exchange) as shared:
            exchange = shared.mapped("write")
        factory, settings = unpack_apart(message.maker, own)
        task = factory(self._device, not_packed(arrays), settings)
        runner = ShareRunner(
            task,
            self._device,
            ahead=self._settings.ahead,
            preparers=self._settings.preparers,
        )
        weights = torch.from_numpy(exchange[WEIGHTS])
        sums = torch.from_numpy(exchange[SUMS][self._settings.place])
        self._tasks[message.task_number] = (runner, weights, sums)
        self._connection.send(Opened())

    def announce(self, message: Announce) -> None:
        self._tasks[message.task_number][0].announce(message.keep, message.shares)

    def step(self, message: Step) -> None:
        runner, weights, sums = self._tasks[message.task_number]
        result = runner.run(message.order, weights, sums)
        self._connection.send(
            Done(
                has_gradient=result.has_gradient,
                numbers=result.numbers,
                times=result.times,
                notes=result.notes,
            )
        )

    def close(self, message: Close) -> None:
        self._tasks.pop(message.task_number)[0].close()


def _read(connection: Connection, messages: queue.SimpleQueue[Callable[[_Worker], None]]) -> None:
    """Take the host's messages, also while a share is computed, so that it never has to wait.

    The process ends here, at once, whatever it is computing, when the host has ended, and when a
    message cannot be read: without this thread no side would ever hear of the other again.
    """
    while True:
        try:
            messages.put(_understood(connection.recv_bytes(), connection))
        except BaseException as error:
            # The host may also end between a message and its descriptors.
            has_ended = isinstance(error, EOFError | ConnectionError)
            if not has_ended:
                traceback.print_exc()
            sys.stderr.flush()
            os._exit(0 if has_ended else 1)


def _understood(content: bytes, connection: Connection) -> Callable[[_Worker], None]:
    message: Any = reduction.ForkingPickler.loads(content)
    match message:
        case Open():
            descriptors = (reduction.recv_handle(connection), reduction.recv_handle(connection))
            return lambda worker: worker.open(message, descriptors)
        case Announce():
            return lambda worker: worker.announce(message)
        case Step():
            return lambda worker: worker.step(message)
        case Close():
            return lambda worker: worker.close(message)
        case _:
            raise AssertionError(f"no message of a host: {message!r}")


def _failed(error: Exception) -> Failed:
    text = " ".join(str(error).split())
    trace = "".join(traceback.format_exception(error))
    return Failed(kind=type(error).__name__, text=text, trace=trace)


def _settle_in(settings: WorkerSettings) -> None:
    torch.set_num_threads(settings.threads)
    # Rounding to ten bits of mantissa would set a GPU's gradient apart from the CPU's.
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    if sys.platform == "linux":
        control = ctypes.CDLL(None).prctl
        control(_SET_NAME, f"retexo {settings.name}".encode())
        if settings.parent:
            control(_SET_SIGNAL_OF_PARENTS_END, signal.SIGKILL)
            if os.getppid() != settings.parent:
                os._exit(0)
