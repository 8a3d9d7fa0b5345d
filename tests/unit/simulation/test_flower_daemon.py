"""The supervisor's small parts; the whole of it is tested on Flower itself (tests/system)."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from retexo_fl.simulation.flower_daemon import (
    LOG_BYTES,
    Assignment,
    answers,
    free_port,
    tail,
)


class _Health(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/health" else 404)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


def test_assignment_survives_its_json() -> None:
    assignment = Assignment(
        directory="/scratch/x",
        superlink="/bin/a b",
        flwr="/bin/flwr",
        bundle="/scratch/x/retexo-fl",
        federation_config='num-supernodes=2 init-args-logging-level="ERROR"',
        start_timeout_s=1.5,
    )
    assert Assignment(**json.loads(assignment.to_json())) == assignment


def test_answers_is_false_where_nobody_listens() -> None:
    assert not answers(free_port())


def test_answers_is_true_where_health_is_good() -> None:
    with HTTPServer(("127.0.0.1", 0), _Health) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        assert answers(server.server_port)
        thread.join()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ""),
        ("one\n\n   \ntwo  \nthree\n", "two\nthree"),
        ("\x1b[91mERROR \x1b[0m: no\n    ^^^^~~\nend", "ERROR : no\nend"),
        ("x" * LOG_BYTES + "\nlast\n", "x" * (LOG_BYTES - 6) + "\nlast"),
    ],
)
def test_tail_returns_the_last_lines_that_say_something(
    tmp_path: Path, text: str, expected: str
) -> None:
    log = tmp_path / "log"
    log.write_text(text, encoding="utf-8")
    assert tail(log, 2) == expected


def test_tail_of_an_absent_log_is_empty(tmp_path: Path) -> None:
    assert tail(tmp_path / "absent", 5) == ""
