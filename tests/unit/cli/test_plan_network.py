from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest

from retexo_fl.cli.plan import _network_lines
from retexo_fl.cli.plan_facts import plan_facts
from retexo_fl.cli.tables import show
from retexo_fl.client.preparation import make_parts
from retexo_fl.config import make_config
from retexo_fl.errors import ConfigurationError

ROUNDS = 4


@cache
def network(links: str = "delay:100ms", **keys: Any) -> dict[str, Any]:
    values = {name.replace("_", "-"): value for name, value in keys.items()}
    base = {"clients": 3, "hidden": 8, "rounds": ROUNDS, "links": links}
    config = make_config(base | values)
    found: dict[str, Any] = plan_facts(config, make_parts(config))["network"]
    return found


def test_without_links_nothing_is_said_of_a_network() -> None:
    config = make_config({"clients": 2, "hidden": 8})
    assert "network" not in plan_facts(config, make_parts(config))


def test_only_the_first_exchange_opens_links() -> None:
    first, second = network()["exchanges"]
    assert first["opening_s"] == pytest.approx(0.6)
    assert second["opening_s"] == 0.0
    # Blocks of a few kilobytes fit the first windows: half a round trip, or one and a half.
    assert first["seconds"] - 0.6 == pytest.approx(0.1) or first["seconds"] > 0.8
    for one in (first, second):
        assert one["acknowledged_s"] == pytest.approx(one["seconds"] + 0.1)


def test_what_is_not_known_exactly_says_so() -> None:
    assert [one["is_exact"] for one in network()["exchanges"]] == [True, False]
    assert [one["is_exact"] for one in network(codec="dense")["exchanges"]] == [True, True]


def test_every_message_of_a_training_is_there() -> None:
    found = network()
    counts = [(one["purpose"], one["stage"], one["count"]) for one in found["messages"]]
    of_stage = [("publish", 1), ("collect", 1), ("train", ROUNDS), ("validate", 1)]
    assert counts == [
        ("hello", -1, 1),
        *((purpose, stage, count) for stage in range(2) for purpose, count in of_stage),
        ("test", 1, 1),
    ]
    each_s = [one["receive_s"][0] + one["send_s"][0] for one in found["messages"]]
    summed = sum(count * s for (*_, count), s in zip(counts, each_s, strict=True))
    assert found["seconds"]["messages"] == pytest.approx(summed)
    assert found["seconds"]["messages"] < found["seconds"]["messages_most"]


def test_the_slowest_pair_and_the_slowest_client_decide(tmp_path: Path) -> None:
    file = tmp_path / "links.toml"
    file.write_text('default = "delay:10ms"\n"1>2" = "rate:64kbit"\n"2-server" = "delay:1s"\n')
    found = network(str(file))
    assert {(one["sender"], one["receiver"]) for one in found["exchanges"]} == {(1, 2)}
    assert {one["client"] for one in found["messages"]} == {2}


def test_end_to_end_training_exchanges_in_every_round() -> None:
    found = network(algorithm="standard")
    assert [one["count"] for one in found["exchanges"]] == [1, 3 * ROUNDS + 2]
    assert {one["stage"] for one in found["messages"]} == {-1, 0}
    assert network(algorithm="drop")["exchanges"] == []


def test_links_that_cannot_be_read_are_named() -> None:
    with pytest.raises(ConfigurationError, match="links: "):
        network("nowhere.toml")


def test_the_table_fits_80_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    show(*_network_lines({"network": network(rounds=ROUNDS)}))
    said = capsys.readouterr().out
    assert "exchange 0" in said
    assert "train 1" in said
    assert max(map(len, said.splitlines())) <= 80
