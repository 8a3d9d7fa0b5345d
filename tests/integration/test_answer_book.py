"""An agent that ends between writing down what it computes and answering, or cannot write it."""

from __future__ import annotations

import asyncio
import errno
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from retexo_fl.client.api import TrainAnswer, TrainRequest
from retexo_fl.client.preparation import make_parts
from retexo_fl.client.sealing import Sealing
from retexo_fl.config import make_config
from retexo_fl.errors import CheckpointError, LocalProtocolError
from tests.support.agent_ends import ROUND, Ends

ALONE: dict[str, Any] = {"clients": 1, "hidden": 8, "rounds": 1}


def begin(folder: Path) -> Ends:
    """Return the service of an agent, as it is after it was killed in a folder."""
    return Ends(folder, make_parts(make_config(ALONE)), ALONE)


def train(end: Ends, fill: float = 0.0, number: int = 1) -> TrainAnswer:
    weights = end.weights() + np.float32(fill)
    request = TrainRequest(ticket=replace(ROUND, round=number), weights=weights)
    return asyncio.run(end.ask(0, request))


def lines(folder: Path, name: str) -> int:
    (path,) = folder.rglob(name)
    return len(path.read_text().splitlines())


class Killed(BaseException):
    """The process has ended here."""


@pytest.mark.parametrize("at", ["before it is computed", "before it leaves"])
def test_a_kill_between_writing_and_answering_lets_nobody_ask_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    end = begin(tmp_path)
    asyncio.run(end.exchange())

    def killed(*arguments: Any, **named: Any) -> Any:
        raise Killed

    if at == "before it is computed":
        where: tuple[Any, str] = (Sealing, "computed")
    else:
        where = (end.jobs[0], "end")
    with monkeypatch.context() as patch:
        patch.setattr(*where, killed)
        with pytest.raises(Killed):
            train(end)
    for _ in range(2):
        end = begin(tmp_path)
        for number in (0, 1):
            with pytest.raises(LocalProtocolError, match="this or a later sum was answered for ot"):
                train(end, fill=1, number=number)
    # The server asks again what it has asked: it is computed now, and was noted once.
    noted = lines(tmp_path, "answers.jsonl")
    answer = train(end)
    again = train(begin(tmp_path))
    assert lines(tmp_path, "answers.jsonl") == noted
    np.testing.assert_array_equal(answer.update_sum, again.update_sum)


def test_what_cannot_be_written_is_not_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    end = begin(tmp_path)
    asyncio.run(end.exchange())
    fsync, computed = os.fsync, Sealing.computed
    runs: list[str] = []

    def full(descriptor: int) -> None:
        if Path(f"/proc/self/fd/{descriptor}").readlink().name == "answers.jsonl":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fsync(descriptor)

    def run(self: Sealing, compute: Any) -> Any:
        runs.append("computed")
        return computed(self, compute)

    monkeypatch.setattr(Sealing, "computed", run)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        for fill in (0, 1):
            with pytest.raises(
                CheckpointError, match="answers.jsonl: could not be written .No space left on dev"
            ):
                train(end, fill)
    assert not runs
    assert not [*tmp_path.rglob("questions.jsonl")]
    # With room again it answers the question that is asked then.
    assert train(end).examples
    with pytest.raises(LocalProtocolError, match="this or a later sum was answered for other"):
        train(begin(tmp_path), fill=1)
