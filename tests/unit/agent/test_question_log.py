"""The log of questions about a part: what counts, across jobs and starts, and how many may be."""

from __future__ import annotations

import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from retexo_fl.agent import wire
from retexo_fl.agent.question_log import QuestionLog
from retexo_fl.cli.agent_status import show_questions
from retexo_fl.client.api import (
    BasisRequest,
    ChoiceRequest,
    CollectRequest,
    EvaluateRequest,
    GramRequest,
    HelloRequest,
    LabelsRequest,
    PredictRequest,
    PublishRequest,
    Request,
    Ticket,
    TrainRequest,
)
from retexo_fl.errors import CheckpointError, LocalProtocolError

TICKET = Ticket(job="job-0123456789ab", attempt=1, stage=1, round=2)
WEIGHTS = np.zeros(4, np.float32)
TRAIN = TrainRequest(ticket=TICKET, weights=WEIGHTS)
PART, OTHER = b"p" * 32, b"o" * 32


def came(asked: Request[Any]) -> wire.Request:
    """Return a question as an agent gets it."""
    data = b"".join(wire.encode_request(asked, {}))
    prefix = wire.Prefix.parse(data[: wire.PREFIX_BYTES])
    end = wire.PREFIX_BYTES + prefix.head_bytes
    return wire.decode_request(data[wire.PREFIX_BYTES : end], data[end:])


def answer(log: QuestionLog, *asked: Request[Any]) -> None:
    for one in asked:
        log.check(came(one), client=3)
        log.enter(came(one), client=3, masked=False)


def path_of(state: Path) -> Path:
    return state / "questions.jsonl"


def test_what_depends_on_the_nodes_counts_and_nothing_else(tmp_path: Path) -> None:
    log = QuestionLog(tmp_path, PART, 100)
    answer(
        log,
        TRAIN,
        EvaluateRequest(ticket=TICKET, weights=WEIGHTS, nodes="test"),
        BasisRequest(ticket=TICKET),
        GramRequest(ticket=TICKET),
        ChoiceRequest(ticket=TICKET, weights=WEIGHTS),
        LabelsRequest(ticket=TICKET),
        PredictRequest(ticket=TICKET, weights=WEIGHTS, form="csv"),
    )
    assert log.count == 7
    answer(log, HelloRequest(ticket=TICKET), PublishRequest(ticket=TICKET))
    answer(log, CollectRequest(ticket=TICKET))
    assert log.count == 7
    assert [found.question for found in log.read()] == [
        *("train_layer", "evaluate_layer", "basis", "gram", "choice", "labels", "predict")
    ]


def test_the_log_says_of_what_only_sums_can_be_read(tmp_path: Path) -> None:
    log = QuestionLog(tmp_path, PART, 9)
    for masked in (True, False):
        asked = replace(TRAIN, steps=str(masked).encode())
        log.enter(came(asked), client=3, masked=masked)
    assert [found.masked for found in log.read()] == [True, False]


def test_the_budget_is_of_all_jobs_and_starts(tmp_path: Path) -> None:
    """The same question has the same answer, and counts once; other weights are another."""
    other = replace(TRAIN, ticket=replace(TICKET, job="job-ba9876543210"))
    answer(QuestionLog(tmp_path, PART, 3), TRAIN, TRAIN)
    answer(QuestionLog(tmp_path, PART, 3), TRAIN, other, replace(TRAIN, weights=WEIGHTS + 1))
    log = QuestionLog(tmp_path, PART, 3)
    assert log.count == 3
    answer(log, TRAIN, other)
    late = replace(TRAIN, weights=WEIGHTS + 2)
    with pytest.raises(
        LocalProtocolError,
        match=r"^client 3: its part has answered 3 questions of all jobs; expected at most 3 "
        r"\(most-questions in its agent.toml\)$",
    ):
        log.check(came(late), client=3)
    # One that was under way when another took the last place is not answered either.
    with pytest.raises(LocalProtocolError, match="answered 3 questions"):
        log.enter(came(late), client=3, masked=False)
    answer(log, HelloRequest(ticket=TICKET))
    assert len(path_of(tmp_path).read_text().splitlines()) == 3


def test_another_part_has_a_budget_of_its_own(tmp_path: Path) -> None:
    answer(QuestionLog(tmp_path, PART, 1), TRAIN)
    other = QuestionLog(tmp_path, OTHER, 1)
    assert other.count == 0
    answer(other, TRAIN)
    assert [found.part for found in other.read()] == [PART.hex()[:16], OTHER.hex()[:16]]
    # Putting the former one back wins nothing.
    with pytest.raises(LocalProtocolError, match="answered 1 question of"):
        answer(QuestionLog(tmp_path, PART, 1), replace(TRAIN, weights=WEIGHTS + 1))


def test_what_a_power_cut_left_of_a_line_was_not_answered(tmp_path: Path) -> None:
    answer(QuestionLog(tmp_path, PART, 9), TRAIN)
    whole = path_of(tmp_path).read_bytes()
    path_of(tmp_path).write_bytes(whole + b'{"at": 17')
    log = QuestionLog(tmp_path, PART, 9)
    assert log.count == 1
    answer(log, replace(TRAIN, weights=WEIGHTS + 1))
    assert path_of(tmp_path).read_bytes().startswith(whole + b'{"at": ')
    assert QuestionLog(tmp_path, PART, 9).count == 2
    assert stat.S_IMODE(path_of(tmp_path).stat().st_mode) == 0o600


@pytest.mark.parametrize("content", ["nonsense\n", "[1]\n", '{"at": 1.5}\n'])
def test_a_damaged_log_is_named(tmp_path: Path, content: str) -> None:
    path_of(tmp_path).write_text(content)
    with pytest.raises(CheckpointError, match=r"questions\.jsonl: is damaged; expected"):
        QuestionLog(tmp_path, PART, 9)


def test_nothing_is_answered_that_cannot_be_noted(tmp_path: Path) -> None:
    path_of(tmp_path).symlink_to(tmp_path / "elsewhere")
    log = QuestionLog(tmp_path, PART, 9)
    with pytest.raises(CheckpointError, match=r"questions\.jsonl: could not be written"):
        answer(log, TRAIN)
    assert not (tmp_path / "elsewhere").exists()


def test_the_owner_reads_it_in_a_narrow_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    log = QuestionLog(tmp_path, PART, 100_000)
    show_questions(log)
    assert capsys.readouterr().out == (
        "0 of at most 100,000 questions answered, about part 7070707070707070\n"
    )
    answer(log, TRAIN, replace(TRAIN, weights=WEIGHTS + 1))
    answer(log, EvaluateRequest(ticket=TICKET, weights=WEIGHTS, nodes="validation"))
    answer(QuestionLog(tmp_path, OTHER, 9), TRAIN)
    show_questions(QuestionLog(tmp_path, PART, 100_000))
    told, head, *rows = filter(None, capsys.readouterr().out.splitlines())
    assert told == "3 of at most 100,000 questions answered, about part 7070707070707070"
    assert head.split() == ["job", "question", "masked", "first", "last", "answered"]
    assert [row.split()[0] for row in rows] == [TICKET.job, TICKET.job, "of"]
    assert [row.split()[-1] for row in rows[:2]] == ["2", "1"]
    assert all(len(line) <= 80 for line in (head, *rows))
