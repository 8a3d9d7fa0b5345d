"""What `retexo agent status` prints, in the narrowest terminal that it is made for."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from rich.console import Console
from rich.live import Live

from retexo_fl.agent.status import without_bytes
from retexo_fl.cli.agent_status import show_status, watch_status
from retexo_fl.errors import AgentUnreachable
from tests.support.cli import CommandLine

JOB = "job-0123456789ab"
PART, OTHER_PART = "p" * 16, "o" * 16


def _peer(client: int, *, connected: bool, **facts: Any) -> dict[str, Any]:
    moved = {"payload_bytes": 123_456_789, "wire_bytes": 123_456_999}
    return {
        "client": client,
        "connected": connected,
        "channel": "bluetooth",
        "last_met": time.time() - 4000,
        "owed": {"blocks": 12, "bytes": 123_456_789},
        "awaited": {"blocks": 1, "bytes": 23_456_789},
        "layers": [{"job": JOB, "layer": 0, "direction": "out", **moved}],
        "channels": {"tcp": {"wire_bytes_sent": 123_456_789, "wire_bytes_received": 987_654_321}},
        "refusals": {"slow": 3},
        "last_error": "",
        **facts,
    }


def _agent(peers: list[dict[str, Any]], **facts: Any) -> dict[str, Any]:
    return {
        "part": {"client": 3, "num_clients": 12, "nodes": 12345, "peers": 2},
        "memory": {"rss_bytes": 310_000_000, "peak_rss_bytes": 329_000_000},
        "package": "1.2.3",
        "pid": 123456,
        "uptime_s": 123456.0,
        "questions": {"answered": 1234, "most": 100_000},
        "epsilon": {"most": 0.0, "delta": 1e-5, "part": PART, "spent": {PART: 0.0}},
        "jobs": [],
        "peers": peers,
        "strangers": {},
        "flower": None,
        "datagrams": None,
        **facts,
    }


NOTHING = {"blocks": 0, "bytes": 0}


def test_all_tables_fit_80_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    job: dict[str, Any] = {"job": JOB, "algorithm": "standard", "model": "sage"}
    job |= {"state": "exchanging", "attempt": 2, "stage": 0, "round": 57, "last_message_s": 3721.0}
    peers = [_peer(1, connected=True), _peer(11, connected=False, next_look_s=29.4)]
    show_status(_agent(peers, jobs=[job], strangers={"certificate": 3}))
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert any(line.startswith("11 ") and "67 min" in line for line in lines)
    assert any(line.startswith(JOB) and "exchanging" in line for line in lines)


def test_who_was_met_when_and_what_is_owed(capsys: pytest.CaptureFixture[str]) -> None:
    now = time.time()
    show_status(
        _agent(
            [
                _peer(1, connected=False, last_met=now - 7300, next_look_s=12.0),
                _peer(2, connected=False, last_met=now - 3 * 86_400, owed=NOTHING),
                _peer(4, connected=False, last_met=None, channel="", next_look_s=0.3),
            ]
        )
    )
    lines = capsys.readouterr().out.splitlines()
    assert "last met client 1 2 h ago over bluetooth; 24 blocks (247 MB) owed to 2 peers" in lines
    words = {line.split()[0]: line.split() for line in lines if line[:1].isdecimal()}
    assert words["1"][1:6] == ["bluetooth", "2", "h", "12", "s"]
    assert words["2"][1:6] == ["bluetooth", "3", "d", "-", "-"]
    assert words["4"][1:4] == ["-", "never", "now"]
    assert "peer 1: refused 3 slow" in lines


@pytest.mark.parametrize(
    ("link", "expected"),
    [
        ({"state": "starting", "answered": 0}, "starting, 0 messages answered"),
        (
            {"state": "away", "since": -3720, "reason": "refused", "answered": 1},
            "away for 1 h 02 min (refused), 1 message answered",
        ),
    ],
)
def test_the_link_to_the_server_is_a_line(
    capsys: pytest.CaptureFixture[str], link: dict[str, Any], expected: str
) -> None:
    # Seconds before now: cases are made long before they are tried.
    since = {"since": time.time() + link["since"]} if "since" in link else {}
    show_status(_agent([], superlink={"address": "x:8000", **link, **since}))
    assert f"SuperLink x:8000: {expected}" in capsys.readouterr().out.splitlines()


def test_bytes_of_tls_stand_where_the_wire_is_not_known(capsys: pytest.CaptureFixture[str]) -> None:
    radio: dict[str, int | None] = {"wire_bytes_sent": None, "wire_bytes_received": None}
    radio |= {"tls_bytes_sent": 1_000_000, "tls_bytes_received": 2_000_000}
    cable = {"wire_bytes_sent": 500_000, "wire_bytes_received": 0}
    channels = {"bluetooth": radio, "tcp": cable}
    show_status(_agent([_peer(1, connected=True, owed=NOTHING, channels=channels)]))
    out = capsys.readouterr().out
    assert "1.5 MB" in out
    assert "2.0 MB" in out
    assert "1 of 1 peer is connected; nothing is owed" in out


def test_of_masked_jobs_a_status_has_no_bytes(capsys: pytest.CaptureFixture[str]) -> None:
    """Code of the server's reads it, too."""
    counters = {"wire_bytes_sent": 7_000_000, "tls_bytes_sent": 6_000_000, "blocks": 3}
    counters |= {"wire_bytes_received": 8_000_000, "tls_bytes_received": 9_000_000}
    peers = [_peer(1, connected=True, channels={"tcp": counters})]
    told = without_bytes(_agent(peers, flower={"up": 5}, datagrams={"a": 1}, deliveries=[2]))
    (peer,) = told["peers"]
    assert peer["channels"]["tcp"] == dict.fromkeys(counters) | {"blocks": 3}
    assert (peer["owed"], peer["awaited"]) == (
        {"blocks": 12, "bytes": None},
        {"blocks": 1, "bytes": None},
    )
    assert (peer["layers"], told["flower"], told["datagrams"], told["deliveries"]) == (
        [],
        None,
        None,
        [],
    )
    show_status(told)
    out = capsys.readouterr().out
    assert "12 blocks (-) owed to 1 peer" in out
    assert "MB" not in out.replace("310 MB", "").replace("329 MB", "")


def test_what_datagrams_come_to_and_who_has_stopped(capsys: pytest.CaptureFixture[str]) -> None:
    counted = {"data_new": 412, "packets_sent": 398, "cache_hits": 2, "malformed": 0}
    counted |= {"bad_checksum": 0, "foreign": 7}
    told: dict[str, Any] = {"kind": "xdp", "address": "10.0.0.1:7412", "counters": counted}
    told |= {"waiting_for": 1, "stalled_peers": [4]}
    show_status(_agent([], datagrams=told))
    out = " ".join(capsys.readouterr().out.split())
    assert re.search(r"datagrams at 10\.0\.0\.1:7412, .*XDP.*: 412 received, 398 sent", out)
    assert "datagrams refused: 7 foreign" in out
    assert "peer 4 has stopped acknowledging" in out


@pytest.mark.parametrize(
    ("most", "spent", "expected"),
    [
        (0.0, {PART: 0.0}, []),
        (8.0, {PART: 0.0}, ["epsilon 0 of at most 8 given away (delta 1e-05)"]),
        (0.0, {PART: 3.14159}, ["epsilon 3.142 given away (delta 1e-05)"]),
        (
            8.0,
            {PART: 2.0, OTHER_PART: None},
            [
                "epsilon 2 of at most 8 given away (delta 1e-05)",
                "epsilon beyond 100 of at most 8 given away (delta 1e-05), about another part, "
                f"{OTHER_PART}",
            ],
        ),
    ],
)
def test_what_each_part_has_given_away_stands_beside_its_budget(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    most: float,
    spent: dict[str, float | None],
    expected: list[str],
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    epsilon = {"most": most, "delta": 1e-5, "part": PART, "spent": spent}
    show_status(_agent([], epsilon=epsilon))
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.startswith("epsilon")] == expected


def test_a_watched_status_outlives_the_agent_and_ends_with_ctrl_c(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    told: Iterator[Any] = iter(
        [_agent([]), AgentUnreachable("no agent answers there"), _agent([], pid=77)]
    )
    left = iter([None, None, KeyboardInterrupt])

    def ask() -> dict[str, Any]:
        answer = next(told)
        if isinstance(answer, Exception):
            raise answer
        return dict(answer)

    def sleep(_: float) -> None:
        if (ends := next(left)) is not None:
            raise ends

    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("retexo_fl.cli.agent_status.Live", partial(Live, console=_terminal()))
    monkeypatch.setattr(time, "sleep", sleep)
    watch_status(ask)
    out = capsys.readouterr().out
    first, away, again = out.index("process 123456"), out.index("no agent"), out.index("process 77")
    assert first < away < again
    # The alternate screen is left: the terminal is as it was.
    assert out.index("\x1b[?1049h") < first
    assert out.rindex("\x1b[?1049l") > again


def _terminal() -> Console:
    return Console(force_terminal=True, width=80, height=30)


def test_a_watched_status_of_no_agent_is_an_error_at_once() -> None:
    def ask() -> dict[str, Any]:
        raise AgentUnreachable("no agent answers there")

    with pytest.raises(AgentUnreachable):
        watch_status(ask)


@pytest.mark.parametrize("more", [(), ("--json",), ("--questions",)])
def test_watching_needs_a_terminal(
    capfd: pytest.CaptureFixture[str], more: tuple[str, ...]
) -> None:
    told = CommandLine(capfd).refused("agent", "status", "--watch", *more, "--config", "none.toml")
    assert told == "watch: expected a terminal, without --questions and --json"
