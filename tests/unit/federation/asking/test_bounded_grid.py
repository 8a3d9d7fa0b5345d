from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterable

import httpx
import pytest
from flwr.app import Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.supercore.inflatable.inflatable_utils import ObjectUnavailableError, pull_objects

from retexo_fl.errors import EngineFailed
from retexo_fl.federation.asking import bounded_grid
from retexo_fl.federation.asking.bounded_grid import BoundedGrid
from retexo_fl.simulation.inline_grid import InlineGrid


class SilentGrid(InlineGrid):
    """Does what Flower's grid of a deployment does when its SuperLink is gone."""

    def __init__(self, does: object) -> None:
        super().__init__(ClientApp(), 2, {})
        self.does = does

    def get_node_ids(self) -> list[int]:
        if isinstance(self.does, BaseException):
            raise self.does
        assert isinstance(self.does, threading.Event)
        self.does.wait(20)
        return []


def test_calls_are_those_of_the_grid() -> None:
    grid = BoundedGrid(InlineGrid(ClientApp(), 2, {}))
    assert list(grid.get_node_ids()) == [2, 3]
    message = Message(RecordDict(), dst_node_id=2, message_type="query.nothing")
    assert list(grid.push_messages(iter([message]))) == ["1"]
    assert list(grid.pull_messages(["9"])) == []


def test_pieces_on_their_way_are_looked_for_soon() -> None:
    BoundedGrid(InlineGrid(ClientApp(), 2, {}))
    begun, asked = time.monotonic(), []

    def pull(object_id: str) -> bytes:
        asked.append(object_id)
        if len(asked) < 3:
            raise ObjectUnavailableError(object_id)
        return b"piece"

    # As Flower's grid calls it.
    assert pull_objects(object_ids=["a"], pull_object_fn=pull) == {"a": b"piece"}
    assert time.monotonic() - begun < 0.75


def failed(status: int) -> httpx.HTTPStatusError:
    request = httpx.Request("POST", "https://127.0.0.1/v1/runtime/nodes")
    response = httpx.Response(status, request=request)
    return httpx.HTTPStatusError(f"{status}", request=request, response=response)


class FailingGrid(InlineGrid):
    """Does what Flower's grid does when its SuperLink fails some times."""

    def __init__(self, failures: list[httpx.HTTPStatusError]) -> None:
        super().__init__(ClientApp(), 2, {})
        self.failures = failures

    def get_node_ids(self) -> list[int]:
        if self.failures:
            raise self.failures.pop()
        return [2, 3]


def test_a_superlink_that_fails_is_asked_again_as_long_as_one_is_patient(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bounded_grid, "_AGAIN_AFTER_S", 0.01)
    grid = FailingGrid([failed(500), failed(503)])
    assert list(BoundedGrid(grid).get_node_ids()) == [2, 3]
    grid = FailingGrid([failed(500) for _ in range(1000)])
    with pytest.raises(EngineFailed, match=r"^the SuperLink (has not answered|does not serve)"):
        BoundedGrid(grid, patience_s=0.1).get_node_ids()
    # Whom it refuses it refuses again.
    grid = FailingGrid([failed(403)])
    with pytest.raises(EngineFailed, match=r"\(403\)"):
        BoundedGrid(grid).get_node_ids()


def test_a_message_whose_life_is_over_is_not_pushed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_grid, "_AGAIN_AFTER_S", 0.01)

    class Strict(InlineGrid):
        def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
            sent = list(messages)
            # It arrives late.
            time.sleep(0.05)
            if any(m.metadata.created_at + m.metadata.ttl < time.time() for m in sent):
                raise failed(500)
            return super().push_messages(sent)

    grid = BoundedGrid(Strict(ClientApp(), 2, {}))
    short = Message(RecordDict(), dst_node_id=2, message_type="query.nudge", ttl=0.02)
    assert list(grid.push_messages([short])) == []
    short = Message(RecordDict(), dst_node_id=2, message_type="query.nudge", ttl=0.02)
    other = Message(RecordDict(), dst_node_id=3, message_type="query.nothing")
    assert list(grid.push_messages([short, other])) == ["1"]


def test_silence_is_a_named_failure() -> None:
    let_go = threading.Event()
    with pytest.raises(EngineFailed, match=r"the SuperLink has not answered for 0\.05 s"):
        BoundedGrid(SilentGrid(let_go), patience_s=0.05).get_node_ids()
    let_go.set()


def test_silence_is_told_and_signals_are_handled_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bounded_grid, "_TOLD_AFTER_S", 0.1)
    let_go = threading.Event()
    told: list[bool] = []
    signals: list[list[bool]] = []
    grid = BoundedGrid(SilentGrid(let_go), on_superlink=told.append)

    def interrupt() -> None:
        # As Flower's watch of its parent does it, from a thread.
        signal.raise_signal(signal.SIGUSR1)

    def handle(_number: int, _frame: object) -> None:
        signals.append([*told])
        let_go.set()

    before = signal.signal(signal.SIGUSR1, handle)
    try:
        timer = threading.Timer(0.5, interrupt)
        timer.start()
        assert grid.get_node_ids() == []
        timer.join()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert signals == [[False]]
    assert told == [False, True]
    # One that answers at once is not spoken of.
    assert list(grid.get_node_ids()) == []
    assert told == [False, True]


def test_refusal_is_a_named_failure_and_end_of_run_goes_through() -> None:
    with pytest.raises(EngineFailed, match="the SuperLink does not serve this run"):
        BoundedGrid(SilentGrid(httpx.ReadError("gone"))).get_node_ids()
    with pytest.raises(SystemExit):
        BoundedGrid(SilentGrid(SystemExit(0))).get_node_ids()
