"""What the doctor says of an agent that asks the SuperLink itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from retexo_fl.agent.settings import AgentSettings
from retexo_fl.doctor import client, examination
from retexo_fl.doctor.finding import Verdict


def settings_of(**changes: Any) -> AgentSettings:
    files: dict[str, Any] = dict.fromkeys(
        ("partition", "state", "socket", "key", "certificate"), "-"
    )
    return AgentSettings(**files, introductions=True, **changes)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, ("", None)),
        ({"superlink": "x:1", "meter": "127.0.0.1:1"}, ("x:1", None)),
        ({"superlink": "x:1", "insecure": True}, ("x:1", None)),
        ({"superlink": "x:1"}, ("https://x:1", None)),
        ({"superlink": "x:1", "root_certificates": "ca"}, ("https://x:1", Path("ca"))),
    ],
)
def test_the_server_is_asked_as_the_agent_asks_it(
    changes: dict[str, Any], expected: tuple[str, Path | None]
) -> None:
    assert examination._server_of(settings_of(**changes)) == expected


@pytest.mark.parametrize(("state", "verdict"), [("connected", Verdict.GOOD), ("away", Verdict.BAD)])
def test_a_link_that_is_away_is_bad(
    monkeypatch: pytest.MonkeyPatch, state: str, verdict: Verdict
) -> None:
    link = {"address": "x:1", "state": state, "reason": "refused"}
    monkeypatch.setattr(client, "ask_agent", lambda *_: {"version": "1", "superlink": link})
    _, finding = client.ask_status(settings_of())
    assert finding.verdict is verdict
    assert f"SuperLink x:1: {state}" in finding.seen
