"""What a client may still be asked, by what it has answered, in this process or an earlier one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from retexo_fl.answer_book import AnswerBook, Limit, Place
from retexo_fl.errors import (
    CheckpointError,
    LocalProtocolError,
    SecureAggregationRefused,
    StaleAttempt,
)
from retexo_fl.line_log import LineLog

JOB = "job-0123456789ab"
TRAIN, VALIDATION = "train.layer", "evaluate.layer validation"
LIMITS = {
    "train.layer": Limit(most=2, stages=2, refusal="no more updates"),
    "query.gram": Limit(most=1, refusal="no more products"),
}
#: A question that was answered at the place of each.
PLACE: Place = (2, 1, 3, 0)


@pytest.fixture(params=["in memory", "after a kill", "in two processes"])
def reopen(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[AnswerBook], AnswerBook]:
    """Return what hands on a book after each entry: itself, or one that reads its file."""
    path = tmp_path / "answers.jsonl"
    two = [AnswerBook(LineLog(path)), AnswerBook(LineLog(path))]

    def other(book: AnswerBook) -> AnswerBook:
        match request.param:
            case "in memory":
                return book
            case "after a kill":
                return AnswerBook(LineLog(path))
        two.reverse()
        return two[0]

    return other


Reopen = Callable[[AnswerBook], AnswerBook]


def enter(book: AnswerBook, place: Place = PLACE, content: bytes = b"w", form: bytes = b"") -> None:
    book.enter(TRAIN, place, content, form, client=3)


def test_the_same_question_is_answered_as_often_as_it_is_asked(reopen: Reopen) -> None:
    book = reopen(AnswerBook())
    for _ in range(3):
        enter(book)
        book = reopen(book)


@pytest.mark.parametrize(
    "place", [PLACE, (2, 1, 2, 0), (2, 1, 2, 1), (2, 0, 9, 1), (1, 9, 9, 1)], ids=str
)
def test_other_content_at_this_or_an_earlier_place_is_refused(reopen: Reopen, place: Place) -> None:
    book = reopen(AnswerBook())
    enter(book)
    book = reopen(book)
    at = "/".join(map(str, place[:3]))
    with pytest.raises(
        LocalProtocolError, match=f"^train.layer {at}: this or a later sum was answ"
    ):
        enter(book, place, b"v")
    # What was refused is no answer.
    enter(reopen(book))


def test_what_went_before_is_refused_with_the_same_content_too(reopen: Reopen) -> None:
    book = reopen(AnswerBook())
    enter(book)
    enter(book, (2, 1, 4, 0))
    with pytest.raises(LocalProtocolError, match="this or a later sum"):
        enter(reopen(book))


def test_another_form_is_other_content(reopen: Reopen) -> None:
    book = reopen(AnswerBook())
    enter(book, form=b"steps")
    with pytest.raises(SecureAggregationRefused, match="this or a later sum"):
        reopen(book).enter(TRAIN, PLACE, b"w", b"others", client=3, error=SecureAggregationRefused)


@pytest.mark.parametrize("place", [(2, 1, 3, 1), (2, 1, 4, 0), (2, 2, 0, 0), (3, 0, 0, 0)], ids=str)
def test_later_places_have_contents_of_their_own(reopen: Reopen, place: Place) -> None:
    book = reopen(AnswerBook())
    enter(book)
    enter(reopen(book), place, b"v")


def test_questions_go_forward_each_by_itself(reopen: Reopen) -> None:
    book = reopen(AnswerBook())
    enter(book)
    for question in (VALIDATION, "evaluate.layer test", "query.labels"):
        reopen(book).enter(question, (1, 0, 0, 0), b"v", client=3)


def test_where_two_contents_may_follow_each_other_a_third_may_not(reopen: Reopen) -> None:
    book = reopen(AnswerBook())

    def judge(content: bytes, trial: int = 0, number: int = 4) -> None:
        reopen(book).enter(VALIDATION, (1, 0, number, trial), content, client=3, twice=True)

    # In the round before, too.
    for content in (b"first", b"sent"):
        judge(content, number=3)
    for content, trial in ((b"sent", 0), (b"sent", 1), (b"after", 0), (b"after", 0), (b"after", 1)):
        judge(content, trial)
    for content in (b"sent", b"third"):
        for trial in (0, 1):
            with pytest.raises(LocalProtocolError, match="this or a later sum"):
                judge(content, trial)


def test_an_attempt_supersedes_those_before(reopen: Reopen) -> None:
    book = reopen(AnswerBook())
    assert book.attempt == 0
    for attempt in (1, 3, 3):
        reopen(book).begin(JOB, attempt, client=3)
    book = reopen(book)
    book.read()
    assert book.attempt == 3
    with pytest.raises(StaleAttempt, match="^client 3: attempt 2 was superseded by attempt 3$"):
        book.begin(JOB, 2, client=3)


def test_an_attempt_far_ahead_is_refused_where_that_is_limited(tmp_path: Path) -> None:
    book = AnswerBook(LineLog(tmp_path / "answers.jsonl"), most_missed=10)
    book.begin(JOB, 10, client=3)
    with pytest.raises(
        LocalProtocolError, match=f"attempt 21 of job {JOB}; expected at most 20, 1"
    ):
        book.begin(JOB, 21, client=3)
    book.begin(JOB, 20, client=3)
    AnswerBook().begin(JOB, 10**9, client=3)


def test_what_is_counted_is_counted_in_all_attempts_and_processes(reopen: Reopen) -> None:
    def open_again(book: AnswerBook) -> AnswerBook:
        book = reopen(book)
        book.limit(LIMITS)
        return book

    book = open_again(AnswerBook())
    for attempt, content in ((1, b"a"), (2, b"a"), (3, b"b"), (4, b"a")):
        enter(book, (attempt, 0, 1, 0), content)
        book = open_again(book)
    for stage, content in ((0, b"c"), (1, b"c"), (1, b"d")):
        if stage:
            enter(book, (5, stage, len(content), ord(content)), content)
        else:
            with pytest.raises(LocalProtocolError, match="^client 3: stage 0: no more updates$"):
                enter(book, (5, stage, 1, 0), content)
        book = open_again(book)
    book.enter("query.gram", (1, 0, 0, 0), b"a", client=3)
    book = open_again(book)
    with pytest.raises(LocalProtocolError, match="^client 3: no more products$"):
        book.enter("query.gram", (2, 1, 0, 0), b"b", client=3)


def test_one_line_is_written_for_what_is_new(tmp_path: Path) -> None:
    path = tmp_path / "job" / "answers.jsonl"
    book = AnswerBook(LineLog(path))
    for _ in range(3):
        book.begin(JOB, 2, client=3)
        enter(book, form=b"steps" * 10**6)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line[:5] for line in lines] == [["", 2, 0, 0, 0], [TRAIN, *PLACE]]
    # However much a server sends.
    assert path.stat().st_size < 400
    assert path.stat().st_mode & 0o777 == 0o600


def test_nothing_is_entered_that_could_not_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "answers.jsonl"
    book = AnswerBook(LineLog(path))
    book.begin(JOB, 1, client=3)

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", full)
        for _ in range(2):
            with pytest.raises(CheckpointError, match="answers.jsonl: could not be written .No sp"):
                enter(book)
    # It may be in the file, but not on the disk: it is written again before it is answered.
    before = path.stat().st_size
    enter(book)
    assert path.stat().st_size > before
    enter(AnswerBook(LineLog(path)))


@pytest.mark.parametrize(
    "line",
    [
        '{"question": "train.layer"}',
        '["train.layer", 1, 0, 1, 0, ""]',
        '["train.layer", 1, 0, 1, true, "", ""]',
        '["train.layer", 1, 0, "1", 0, "", ""]',
        "7",
        "[" * 10**5,
    ],
    ids=lambda line: line[:40],
)
def test_a_damaged_book_answers_nothing(tmp_path: Path, line: str) -> None:
    path = tmp_path / "answers.jsonl"
    book = AnswerBook(LineLog(path))
    book.begin(JOB, 1, client=3)
    with path.open("a") as file:
        file.write(f"{line}\n")
    for opened in (book, AnswerBook(LineLog(path))):
        with pytest.raises(CheckpointError, match="answers.jsonl: is damaged; expected"):
            opened.begin(JOB, 2, client=3)
        with pytest.raises(CheckpointError, match="answers.jsonl: is damaged; expected"):
            enter(opened)


def test_the_latest_place_counts_in_whatever_order_two_processes_wrote(tmp_path: Path) -> None:
    log = LineLog(tmp_path / "answers.jsonl")
    for number in (3, 2):
        log.add([TRAIN, 2, 1, number, 0, b"w".hex(), ""])
    with pytest.raises(LocalProtocolError, match="this or a later sum"):
        enter(AnswerBook(log), content=b"v")


def test_half_a_line_is_what_a_power_cut_left(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    enter(AnswerBook(LineLog(path)))
    with path.open("a") as file:
        file.write('["train.layer", 9, 9')
    book = AnswerBook(LineLog(path))
    enter(book)
    enter(book, (2, 1, 4, 0))
    assert len(path.read_text().splitlines()) == 2
