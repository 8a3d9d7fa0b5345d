"""A worker process as its host sees it; whatever happens there, the host waits a bounded time."""

from __future__ import annotations

import multiprocessing
import os
import socket
import struct
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from multiprocessing import connection, reduction
from typing import Any, Final, TypeVar

from retexo_fl import errors
from retexo_fl.additions.devices.workers.messages import Done, Failed, Opened, Ready, WorkerSettings
from retexo_fl.additions.devices.workers.packing import pack
from retexo_fl.additions.devices.workers.worker import work
from retexo_fl.errors import DeviceFailed, RetexoError

#: How long a process may take to import PyTorch on a slow card.
START_TIMEOUT_S: Final = 300.0
#: How long each way of ending a worker may take: asked, terminated, killed.
END_TIMEOUT_S: Final = 2.0
#: How long a worker may leave its pipe full; a thread of it does nothing but read.
SEND_TIMEOUT_S: Final = 60
_Answer = TypeVar("_Answer", Ready, Opened, Done)
_MAIN_HINT: Final = "a script that uses devices does its work under if __name__ == '__main__'"


class WorkerProcess:
    """One child process and the pipe to it."""

    def __init__(self, name: str, place: int, *, threads: int, ahead: int, preparers: int) -> None:
        """Start the process.

        Args:
            name: Of its device.
            place: Its number among the workers.
            threads: That it computes with.
            ahead: Announced shares that it prepares ahead.
            preparers: Threads that prepare them.

        Raises:
            DeviceFailed: It could not be started.
        """
        self.name = name
        self._has_answered = False
        # "spawn": this process has threads, and a fork would copy their locks as they are.
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe(duplex=True)
        _bound_sending(self._pipe)
        # Linux sends the signal when the *thread* that started the child ends; only the main
        # thread ends with the process. The pipe's end reaches the child in any case.
        is_main_thread = threading.current_thread() is threading.main_thread()
        settings = WorkerSettings(
            name=name,
            place=place,
            threads=threads,
            ahead=ahead,
            preparers=preparers,
            parent=os.getpid() if is_main_thread else 0,
        )
        self._process = context.Process(
            target=work, args=(theirs, settings), name=f"retexo {name}", daemon=True
        )
        try:
            self._process.start()
        except OSError as error:
            self._pipe.close()
            raise DeviceFailed(f"{name}: its process cannot start ({error.strerror})") from error
        finally:
            theirs.close()

    @property
    def process_id(self) -> int:
        """Number of the process."""
        assert self._process.pid is not None
        return self._process.pid

    def send(self, message: object, descriptors: Sequence[int] = ()) -> None:
        """Send a message, and descriptors after it.

        Raises:
            ConfigurationError: The message holds what another process cannot make again.
            DeviceFailed: The worker has ended, or does not read.
        """
        content = pack(message)
        try:
            self._pipe.send_bytes(content)
            for descriptor in descriptors:
                reduction.send_handle(self._pipe, descriptor, self.process_id)
        except BlockingIOError as error:
            raise DeviceFailed(f"{self.name}: its process hangs; it was ended") from error
        except OSError as error:
            raise self._ended() from error

    def hang_up(self) -> None:
        """Close the pipe, upon which the process ends by itself."""
        self._pipe.close()

    def close(self) -> None:
        """End the process, by force where hanging up is not enough."""
        self.hang_up()
        for insist in (self._process.terminate, self._process.kill, _wait_no_more):
            self._process.join(END_TIMEOUT_S)
            if self._process.exitcode is not None:
                self._process.close()
                return
            insist()

    def _answer(self, kind: type[_Answer]) -> _Answer:
        try:
            content = self._pipe.recv_bytes()
        except (EOFError, OSError) as error:
            raise self._ended() from error
        answer = self._understood(content)
        if isinstance(answer, Failed):
            raise _raised_again(self.name, answer)
        if not isinstance(answer, kind):
            raise DeviceFailed(
                f"{self.name}: answered {type(answer).__name__}, expected {kind.__name__}; "
                "it was ended"
            )
        self._has_answered = True
        return answer

    def _understood(self, content: bytes) -> object:
        try:
            answer: object = reduction.ForkingPickler.loads(content)
        except Exception as error:
            # Damaged content can raise anything.
            raise DeviceFailed(f"{self.name}: its answer cannot be read; it was ended") from error
        return answer

    def _ended(self) -> DeviceFailed:
        self._process.join(END_TIMEOUT_S)
        code = self._process.exitcode
        if code is None:
            how = "closed its connection"
        else:
            how = f"ended by signal {-code}" if code < 0 else f"ended with code {code}"
        hint = "" if self._has_answered else f"; {_MAIN_HINT}"
        return DeviceFailed(f"{self.name}: its process {how}, see its error output above{hint}")


def answers_of(
    workers: Mapping[int, WorkerProcess], kind: type[_Answer], *, timeout_s: float
) -> dict[int, _Answer]:
    """Wait for one answer of each worker.

    Args:
        workers: By place.
        kind: What they are to answer.
        timeout_s: For all of them together.

    Raises:
        DeviceFailed: A worker raised an error, ended, answered something else, or did not answer
            in time.
        RetexoError: A worker raised a named failure; the device is named in front.
    """
    deadline = time.monotonic() + timeout_s
    waiting = {worker._pipe: place for place, worker in workers.items()}
    answers: dict[int, _Answer] = {}
    while waiting:
        # A pipe is ready when its worker has answered, and also when it has ended.
        ready = connection.wait(list(waiting), timeout=max(0.0, deadline - time.monotonic()))
        if not ready:
            silent = ", ".join(workers[place].name for place in waiting.values())
            raise DeviceFailed(f"{silent}: no answer within {timeout_s:g} s; it was ended")
        for pipe in [pipe for pipe in waiting if pipe in ready]:
            place = waiting.pop(pipe)
            answers[place] = workers[place]._answer(kind)
    return answers


def _raised_again(name: str, failed: Failed) -> RetexoError:
    """Return the error to raise here for a worker's failure, with its trace as a note."""
    known = getattr(errors, failed.kind, None)
    if isinstance(known, type) and issubclass(known, RetexoError):
        error = known(f"{name}: {failed.text}")
    else:
        error = DeviceFailed(f"{name}: raised {failed.kind}: {failed.text}")
    error.add_note(failed.trace)
    return error


def _bound_sending(pipe: connection.Connection[Any, Any]) -> None:
    if sys.platform == "win32":
        return
    # The option belongs to the socket itself, not to this second descriptor of it.
    with socket.socket(fileno=os.dup(pipe.fileno())) as own_end:
        own_end.setsockopt(
            socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("@ll", SEND_TIMEOUT_S, 0)
        )


def _wait_no_more() -> None:
    """Leave a process that not even the system can end: it waits for a device."""
