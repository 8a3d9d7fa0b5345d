"""`retexo agent run`: what is given on the command line, beside what stands in the file."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.cli import CommandLine

LEAST = """
partition = "part-0"
state = "state"
socket = "agent.sock"
key = "key.pem"
certificate = "certificate.pem"
roster = "roster.toml"
"""


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        (
            'superlink = "x:1"\nmeter = "127.0.0.1:7412"',
            "superlink: expected none with meter in ",
        ),
        ('root-certificates = "ca.crt"', "root-certificates: expected none without TLS"),
    ],
)
def test_a_superlink_does_not_go_with_all_that_the_file_says(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], more: str, expected: str
) -> None:
    (tmp_path / "agent.toml").write_text(LEAST + more)
    given = ("--config", tmp_path / "agent.toml", "--superlink", "http://y:1")
    assert expected in CommandLine(capfd).refused("agent", "run", *given)
    assert not (tmp_path / "state").exists()
