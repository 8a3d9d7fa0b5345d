from __future__ import annotations

import io
import re

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retexo_fl.cli.sentences import complain, printable, tell, unknown, usage_sentence


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain", "plain"),
        ("two  blanks stay", "two  blanks stay"),
        ("one\n  two\n\nthree\n", "one two three"),
        ("red \x1b[31m", "red \\x1b[31m"),
        ("tab\t", "tab"),
        ("a\tb", "a\\tb"),
        ("\udcff", "\\udcff"),
        ("Zürich", "Zürich"),
    ],
)
def test_printable_is_one_line_without_control_characters(text: str, expected: str) -> None:
    assert printable(text) == expected


@given(st.text())
def test_printable_of_anything_is_printable_and_stays_so(text: str) -> None:
    once = printable(text)
    assert once.isprintable()
    assert printable(once) == once.strip()


def test_complain_is_one_line_on_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    complain("error: a\nb")
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "retexo: error: a b\n")


def test_complain_to_nobody_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(5, "Input/output error")

    monkeypatch.setattr("sys.stderr", Gone())
    complain("error: nobody reads this")


def test_tell_keeps_lines_apart(capsys: pytest.CaptureFixture[str]) -> None:
    tell("one\ntw\x07o")
    assert capsys.readouterr().out == "one\ntw\\x07o\n"


def test_unknown_names_the_nearest() -> None:
    near = unknown("option", "--seeed", ["--seed", "--out"])
    assert re.fullmatch(r"--seeed: unknown option; .*'--seed'\?", near)
    assert unknown("option", "--x", ["--seed", "--out"]) == "--x: unknown option; see --help"


def test_usage_sentence_of_other_errors_is_theirs() -> None:
    assert usage_sentence(click.UsageError("that is wrong")) == "that is wrong"
