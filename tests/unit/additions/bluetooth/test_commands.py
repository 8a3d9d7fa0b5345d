"""``retexo bluetooth`` on a machine where something is missing, and with words that are wrong."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.cli import CommandLine

COMMANDS = (
    ("list",),
    ("scan",),
    ("pair", "--accept"),
    ("pair", "00:AA:01:00:00:00"),
    ("trust", "00:AA:01:00:00:00"),
    ("remove", "00:AA:01:00:00:00"),
)


@pytest.fixture
def retexo(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> CommandLine:
    """Run commands where no D-Bus answers."""
    monkeypatch.setenv("DBUS_SYSTEM_BUS_ADDRESS", f"unix:path={tmp_path / 'bus'}")
    return CommandLine(capsys)


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_without_a_bus_one_line_says_what_is_missing(
    retexo: CommandLine, arguments: tuple[str, ...]
) -> None:
    told = retexo.refused("bluetooth", *arguments)
    assert "D-Bus system bus" in told
    assert "apt install dbus bluez" in told
    assert retexo.refused("bluetooth", *arguments, "--json") == told


def test_a_bus_that_cannot_be_spoken_to_is_named(
    retexo: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DBUS_SYSTEM_BUS_ADDRESS", "carrier-pigeon:")
    told = retexo.refused("bluetooth", "list")
    assert "D-Bus system bus" in told
    assert "apt install dbus bluez" in told


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("pair",), "ADDRESS: missing; expected .*--accept"),
        (("pair", "hci0"), "ADDRESS: got 'hci0'; expected .*B8:27:EB:12:34:56"),
        (("pair", "--accept", "00:AA:01"), "ADDRESS: got '00:AA:01'; expected"),
        (("trust", "00-AA-01-00-00-00"), "ADDRESS: got '00-AA-01-00-00-00'; expected"),
        (("remove",), "argument: missing; expected ADDRESS"),
        (("scan", "--seconds", "0"), r".*'--seconds': 0\.0 .*range"),
        (("pear",), r"pear: unknown command; .*'pair'\?"),
    ],
)
def test_words_that_are_wrong_are_named(
    retexo: CommandLine, arguments: tuple[str, ...], expected: str
) -> None:
    assert re.match(expected, retexo.refused("bluetooth", *arguments))


@pytest.mark.parametrize("command", ["", "pair", "trust", "list", "scan", "remove"])
def test_help_shows_an_example_within_80_columns(
    retexo: CommandLine, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    shown = retexo.done("bluetooth", *command.split(), "--help")
    assert max(map(len, shown.splitlines())) <= 80
    assert "$ retexo bluetooth " in shown[shown.index("Example") :]
