"""Rounds of ours and of a trivial Flower app in turn, inside one simulation.

Before each round of a training the server sends every client an array of as many bytes as that
round's message, and gets one of as many bytes as an answer back: all that Flower, Ray and the
machine do to one kind of message they do to the other. What the components of a training are
called, its bundle finds here (``flower_rounds.py``).
"""

from __future__ import annotations

import functools
import json
import os
import statistics
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from retexo_fl import federation
from retexo_fl.client.api import ClientApi, Request
from retexo_fl.federation import client_handlers
from retexo_fl.federation.records import content_volumes
from retexo_fl.simulation.flower_processes import descendants_of, process_table

#: Names the file that the seconds of rounds go to.
OUT_VARIABLE: Final = "RETEXO_BENCH_ROUNDS"
_TRIVIAL: Final = "train.trivial"
_TRAIN: Final = "train.layer"
_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")


# ---- server -------------------------------------------------------------------------------------


def make_server_app(**how: Any) -> ServerApp:
    """Return the ServerApp of a training that carries a trivial round before each of its own."""
    app: Any = federation.make_server_app(**how)
    paired = ServerApp()

    @paired.main()
    def main(grid: Grid, context: Context) -> None:
        pairs = _Pairs(grid)
        try:
            app(grid, context)
        finally:
            Path(os.environ[OUT_VARIABLE]).write_text(json.dumps(pairs.taken), encoding="utf-8")

    return paired


class _Pairs:
    """Stands before a grid; ``taken`` has seconds and CPU seconds of pairs of rounds.

    A round of ours is from sending its messages until those of the next message are to be sent: its
    answers are read, added, and the weights take a step.
    """

    def __init__(self, grid: Grid) -> None:
        self.taken: list[dict[str, float]] = []
        self._grid: Any = grid
        self._push: Callable[[Iterable[Message]], Iterable[str]] = grid.push_messages
        self._pull: Callable[[Iterable[str]], Iterable[Message]] = grid.pull_messages
        self._begun: dict[str, float] = {}
        #: Of each answer in the round before.
        self._answered: list[int] = []
        self._is_round = False
        vars(grid)["push_messages"] = self._push_messages
        vars(grid)["pull_messages"] = self._pull_messages

    def _push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        messages = list(messages)
        kinds = {message.metadata.message_type for message in messages}
        if _TRIVIAL in kinds:
            return self._push(messages)
        if self._begun:
            self.taken[-1] |= _since(self._begun, "ours")
            self._begun = {}
        # Clients without train nodes are asked something else in the same round.
        self._is_round = _TRAIN in kinds
        if self._is_round:
            # The bytes of answers are known from the second round on.
            if self._answered:
                self._carry_trivial(messages)
                self._begun = _now()
            self._answered = []
        return self._push(messages)

    def _pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        replies = list(self._pull(message_ids))
        if self._is_round:
            self._answered += map(_payload, replies)
        return replies

    def _carry_trivial(self, messages: list[Message]) -> None:
        begun = _now()
        down_bytes, up_bytes = _mean(map(_payload, messages)), _mean(self._answered)
        array = Array(np.full(down_bytes, len(self.taken) % 256, np.uint8))
        content = RecordDict(
            {
                "arrays": ArrayRecord({"array": array}),
                "config": ConfigRecord({"up-bytes": up_bytes}),
            }
        )
        nodes = [item.metadata.dst_node_id for item in messages]
        asked = [Message(content, dst_node_id=node, message_type=_TRIVIAL) for node in nodes]
        answers: list[Any] = [reply.content for reply in self._sent_by_flower(asked)]
        total = sum(int(answer["arrays"]["array"].numpy()[0]) for answer in answers)
        assert total == len(nodes) * (len(self.taken) % 256), "answers are missing"
        pair = _since(begun, "flower")
        sizes = {"asked": len(nodes), "down_bytes": down_bytes, "up_bytes": up_bytes}
        self.taken.append({**pair, **sizes})

    def _sent_by_flower(self, messages: list[Message]) -> list[Message]:
        """Do as ``send_and_receive`` of Flower's grid, without what we change in it."""
        methods = vars(self._grid.state)
        ours = methods.pop("get_message_ins", None)
        names, replies = set(self._push(messages)), list[Message]()
        while True:
            came = self._pull(names)
            replies += came
            names -= {reply.metadata.reply_to_message_id for reply in came}
            if not names:
                break
            time.sleep(self._grid.pull_interval)
        if ours is not None:
            methods["get_message_ins"] = ours
        return replies


def _mean(sizes: Iterable[int]) -> int:
    """Return the mean size: at least a byte, by which messages are told apart."""
    return max(1, round(statistics.fmean(sizes)))


def _payload(message: Message) -> int:
    return sum(volume.payload for volume in content_volumes(message.content))


def _now() -> dict[str, float]:
    """Return the time, and CPU seconds: of this process and all under it, and of computing."""
    table = process_table()
    return {
        "s": time.monotonic(),
        "cpu_s": sum(map(_cpu_s, (os.getpid(), *descendants_of(table, os.getpid())))),
        "computed_s": sum(float(path.read_text()) for path in _meters()),
    }


def _since(begun: dict[str, float], name: str) -> dict[str, float]:
    """Return what has been taken since: one tick of the kernel's clock at least."""
    now = _now()
    return {f"{name}_{key}": max(now[key] - begun[key], 1 / _TICKS_PER_S) for key in now}


def _meters() -> list[Path]:
    out = Path(os.environ[OUT_VARIABLE])
    return [*out.parent.glob(f"{out.name}.*")]


def _cpu_s(pid: int) -> float:
    try:
        text = Path("/proc", str(pid), "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:  # it ended meanwhile
        return 0.0
    fields = text[text.rindex(")") + 2 :].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


# ---- clients ------------------------------------------------------------------------------------


@functools.cache
def make_client_app(**places: str) -> ClientApp:
    """Return the ClientApp of a training that also answers trivial messages."""
    vars(client_handlers)["_answers"] = _metered(client_handlers._answers)
    app: Any = federation.make_client_app(**places)
    kind, action = _TRIVIAL.split(".")
    getattr(app, kind)(action)(_answer_trivial)
    app.__class__ = _Paired
    app.places = places
    made: ClientApp = app
    return made


class _Paired(ClientApp):
    """Pickles as the call that makes it, as ours does."""

    places: dict[str, str]

    def __reduce__(self) -> tuple[Callable[..., ClientApp], tuple[Any, ...]]:
        return functools.partial(make_client_app, **self.places), ()


def _answer_trivial(message: Message, _: Context) -> Message:
    content: Any = message.content
    array = content["arrays"]["array"].numpy()
    answer = Array(np.resize(array, content["config"]["up-bytes"]))
    return Message(RecordDict({"arrays": ArrayRecord({"array": answer})}), reply_to=message)


def _metered(answers: Callable[..., RecordDict]) -> Callable[..., RecordDict]:
    """Return what has clients answer, and keeps a file of this process's seconds of that."""
    taken = _Taken()
    return lambda client, *asked: answers(_Metered(client, taken), *asked)


class _Taken:
    """CPU seconds of this process that clients have computed for, in a file of its own."""

    def __init__(self) -> None:
        self._file = os.open(f"{os.environ[OUT_VARIABLE]}.{os.getpid()}", os.O_WRONLY | os.O_CREAT)
        self._seconds = 0.0
        self.add(0.0)

    def add(self, seconds: float) -> None:
        self._seconds += seconds
        os.pwrite(self._file, f"{self._seconds:020.9f}".encode(), 0)


class _Metered:
    """A client whose computing is metered."""

    def __init__(self, client: ClientApi, taken: _Taken) -> None:
        self._client, self._taken = client, taken

    def ask(self, request: Request[Any]) -> Any:
        begun_s = time.thread_time()
        try:
            return self._client.ask(request)
        finally:
            self._taken.add(time.thread_time() - begun_s)
