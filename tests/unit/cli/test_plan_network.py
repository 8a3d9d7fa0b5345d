from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from retexo_fl.api.plan_exchanges import PlannedParts
from retexo_fl.api.plan_facts import plan_facts
from retexo_fl.cli.plan import _network_lines
from retexo_fl.cli.tables import show
from retexo_fl.client.preparation import make_parts
from retexo_fl.config import make_config
from retexo_fl.errors import ConfigurationError
from tests.support.cli import CommandLine
from tests.support.ways import profile_keys

ROUNDS = 4


@cache
def network(links: str = "delay:100ms", **keys: Any) -> dict[str, Any]:
    values = {name.replace("_", "-"): value for name, value in keys.items()}
    base = {"clients": 3, "hidden": 8, "rounds": ROUNDS, "links": links}
    config = make_config(base | values)
    found: dict[str, Any] = plan_facts(config, PlannedParts(make_parts(config)))["network"]
    return found


def test_without_links_nothing_is_said_of_a_network() -> None:
    config = make_config({"clients": 2, "hidden": 8})
    assert "network" not in plan_facts(config, PlannedParts(make_parts(config)))


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


def lean(**keys: Any) -> dict[str, Any]:
    return network(
        **{**profile_keys("lean"), "rounds": ROUNDS, "model": "gcn", "basis_blocks": 3, **keys}
    )


def asked(found: dict[str, Any]) -> list[tuple[Any, ...]]:
    names = ("purpose", "stage", "count", "first")
    return [tuple(one[name] for name in names) for one in found["messages"]]


ALONG = ("publish", "collect")
ALONE: tuple[str, ...] = ()


def test_an_exchange_goes_along_with_what_follows_where_changes_are_sent() -> None:
    rounds = [("train", ROUNDS - 1, ALONE), ("validate", 1, ALONE)]
    stages = [
        (purpose, stage, count, first)
        for stage in (0, 1)
        for purpose, count, first in [("train", 1, ALONG), *rounds]
    ]
    hello, test = ("hello", -1, 1, ALONE), ("test", 1, 1, ALONE)
    basis = [("basis", 0, 1, ALONE), ("basis", 0, 1, ALONE), ("basis", 0, 2, ALONE)]
    assert asked(lean()) == [hello, *basis, *stages, test]
    # A basis of sums needs the features first.
    sums = [("basis", 0, 1, ALONG), *basis[1:]]
    assert asked(lean(basis_rows="sums")) == [hello, *sums, *stages, test]
    for alone in ({"min_clients": 2, "round_deadline_s": 9.0}, {"weight_bits": 32}):
        purposes = [one["purpose"] for one in lean(**alone)["messages"]]
        assert purposes.count("publish") == purposes.count("collect") == 2
        assert not any(one["first"] for one in lean(**alone)["messages"])
    together = network(algorithm="standard", weight_bits=4)
    assert asked(together)[1:3] == [("publish", 0, 1, ALONE), ("collect", 0, 1, ALONE)]


def test_arrays_have_the_bytes_of_their_bits() -> None:
    # Digits: 64 features, 10 classes; three blocks of coordinates, 8 hidden values, two stages.
    values = [30 * 8 + 3 * 8 + 8 * 10 + 10, 8 * 10 + 10]
    found = {(one["purpose"], one["stage"], one["first"]): one for one in lean()["messages"]}

    def bits(count: int, bits: int) -> int:
        return 8 + -(-count // 256) + -(-count * bits // 8)

    for stage, count in enumerate(values):
        later = found["train", stage, ALONE]
        assert later["down_bytes"] == found["validate", stage, ALONE]["down_bytes"]
        assert (later["down_bytes"], later["up_bytes"]) == (bits(count, 4), bits(count, 8))
    basis_bytes = 2 * 64 + bits(64 * 30, 8)
    assert found["train", 0, ALONG]["down_bytes"] == basis_bytes + 8
    assert found["train", 1, ALONG]["down_bytes"] == 8 + 8
    assert found["test", 1, ALONE]["down_bytes"] == 8
    # Selected weights may be too old to be held where nothing ends a stage early; so they are where
    # clients cannot ask for them.
    whole = lean(patience=0)["messages"]
    assert whole[-1]["down_bytes"] == 4 * values[1]
    assert network(algorithm="standard", weight_bits=4)["messages"][-1]["down_bytes"] > 4 * 64 * 8
    first, second = lean()["exchanges"]
    assert not first["is_exact"]
    assert not second["is_exact"]
    # Features cross in few bits, too, where they are not shorter without loss.
    rounded, plain = (lean(basis_rows="sums", row_bits=b)["exchanges"][0] for b in (8, 32))
    assert (rounded["is_exact"], plain["is_exact"]) == (False, True)
    assert rounded["payload_bytes"] < plain["payload_bytes"] / 2
    assert first["payload_bytes"] < lean(row_bits=32)["exchanges"][0]["payload_bytes"] / 3.5


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
    show(*_network_lines({"network": lean(rounds=100)}))
    said = capsys.readouterr().out
    assert "exchange 0" in said
    assert "train 1" in said
    assert "first 1" in said
    assert max(map(len, said.splitlines())) <= 80


def test_the_plan_is_json(capfd: pytest.CaptureFixture[str]) -> None:
    retexo = CommandLine(capfd)
    said = json.loads(retexo.done("plan", "--clients", "2", "--links", "4g", "--json"))
    assert said["network"]["lines"] == {
        "default": {"rate_bit_s": 13.6e6, "delay_s": 0.02655, "loss": 0.0}
    }
