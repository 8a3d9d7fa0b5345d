"""Whole trainings over modelled links: their time equals closed forms that are written out here."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from retexo_fl.channels import BlockKey, MemoryChannel
from retexo_fl.errors import ConfigurationError
from retexo_fl.ledger import SERVER, TrafficLedger
from retexo_fl.simulation.inline_engine import run_clients
from tests.integration.test_resume import interrupted
from tests.support.cli import TINY, CommandLine, write_graph
from tests.support.data import cora_dir
from tests.support.runs import configured, model_bytes, result_of, train, train_over

CLIENTS, ROUNDS, STAGES = 3, 4, 2
SMALL = ("--clients", "2", "--split", "random:0.4/0.3/0.3", *TINY)


def cora() -> dict[str, Any]:
    return {
        **{"dataset": "cora", "data_dir": cora_dir(), "clients": CLIENTS, "model": "gcn"},
        **{"hidden": 16, "rounds": ROUNDS, "layers": STAGES},
        # One client's updates are the longest in every round, so that sums of maxima are simple.
        "split": "random-unstratified:0.2/0.1/0.7",
    }


def network_of(run: Path) -> dict[str, Any]:
    network: dict[str, Any] = result_of(run)["network"]
    return network


# ---- delay --------------------------------------------------------------------------------------


def test_delay_counts_the_messages_one_after_the_other(tmp_path: Path) -> None:
    network = network_of(train(tmp_path / "run", links="wan-50ms", **cora()))
    # There and back: hello; by stage publish, collect, the rounds, the last validation; the test.
    round_trips = 1 + STAGES * (1 + 1 + ROUNDS + 1) + 1
    assert network["seconds"] == float(2 * round_trips * Fraction(1, 20))
    assert network["exchange_s"] == float(4 * STAGES * Fraction(1, 20))
    assert network["train_s"] == float(2 * STAGES * ROUNDS * Fraction(1, 20))
    assert network["evaluate_s"] == float(2 * (STAGES + 1) * Fraction(1, 20))
    assert network["hello_s"] == 0.1
    # Every block is there before the server asks for it.
    assert network["between_clients_s"]["total"] == 0


def test_blocks_over_slow_links_are_waited_for(tmp_path: Path) -> None:
    links = tmp_path / "links.toml"
    links.write_text('default = "delay:7s"\nserver = "delay:1s"\n', encoding="utf-8")
    network = network_of(train(tmp_path / "run", links=links, **cora()))
    # A block leaves 1 s after the server's word and is there after 8; the reply comes 1 s later.
    assert network["exchange_s"] == STAGES * 9
    assert network["between_clients_s"]["exchange"] == STAGES * 7
    assert network["train_s"] == 2 * STAGES * ROUNDS
    assert network["between_clients_s"]["train"] == 0


def test_exchanges_inside_rounds_are_waited_for(tmp_path: Path) -> None:
    keys = {**cora(), "layers": 3}
    run = train(tmp_path / "run", algorithm="standard", links="wan-50ms", **keys)
    network = network_of(run)
    # One pass between layers for each of: validation, forward, backward.
    passes = 2
    assert network["train_s"] == float(ROUNDS * (2 + 3 * passes) * Fraction(1, 20))
    assert network["between_clients_s"]["train"] == float(ROUNDS * 3 * passes * Fraction(1, 20))
    assert network["between_clients_s"]["validation"] == float(ROUNDS * passes * Fraction(1, 20))
    assert network["evaluate_s"] == float(2 * (2 + passes) * Fraction(1, 20))
    assert network["exchange_s"] == 0.2


def test_twice_the_delay_is_twice_the_time(tmp_path: Path) -> None:
    once = network_of(train(tmp_path / "once", links="delay:17ms", **cora()))
    twice = network_of(train(tmp_path / "twice", links="delay:34ms", **cora()))
    assert twice["seconds"] == 2 * once["seconds"] > 0
    assert twice["exchange_s"] == 2 * once["exchange_s"]


# ---- rate ---------------------------------------------------------------------------------------


class CountingChannel(MemoryChannel):
    """Writes down the bytes of every block, by stage, sender and receiver."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks: Counter[tuple[int, int, int]] = Counter()

    def send_block(self, key: BlockKey, frames: Sequence[bytes]) -> int:
        moved = super().send_block(key, frames)
        self.blocks[key.layer, key.sender, key.receiver] += moved
        return moved


def sizes(run: Path) -> dict[tuple[str, int], dict[int, tuple[int, int]]]:
    """Return payload (down, up) of each client's messages with the server, by purpose and stage."""
    ledger = TrafficLedger.from_csv((run / "ledger.csv").read_text().splitlines())
    found: dict[tuple[str, int], dict[int, tuple[int, int]]] = defaultdict(dict)
    for account, volume in ledger.lines():
        if account.peer == SERVER:
            of_step = found[account.purpose, account.layer]
            down, up = of_step.get(account.client, (0, 0))
            if account.direction == "in":
                of_step[account.client] = (down + volume.payload, up)
            else:
                of_step[account.client] = (down, up + volume.payload)
    return found


def test_rate_counts_the_bytes_of_the_slowest_link(tmp_path: Path) -> None:
    """Bytes are those of a run without a network, over a channel of the test's."""
    channel = CountingChannel()
    train_over(configured(tmp_path / "ideal", **cora()), channel)
    moved = sizes(tmp_path / "ideal")
    network = network_of(train(tmp_path / "run", links="rate:8kbit", **cora()))

    (hello,) = moved["hello", -1].values()
    assert network["hello_s"] == sum(hello) / CLIENTS / 1000
    trained = [max(map(sum, moved["train", stage].values())) for stage in range(STAGES)]
    assert network["train_s"] == sum(trained) / 1000
    evaluated = [max(map(sum, moved["evaluate", stage].values())) for stage in range(STAGES)]
    assert network["evaluate_s"] == sum(evaluated) / 1000

    exchanged = sum(exchange_bytes(moved, channel.blocks, stage) for stage in range(STAGES))
    assert network["exchange_s"] == exchanged / 1000
    whole = hello[0] / CLIENTS + hello[1] / CLIENTS + sum(trained) + sum(evaluated) + exchanged
    assert network["seconds"] == whole / 1000
    assert 0 < network["between_clients_s"]["total"] < network["exchange_s"]


def exchange_bytes(
    moved: dict[tuple[str, int], dict[int, tuple[int, int]]],
    blocks: Counter[tuple[int, int, int]],
    stage: int,
) -> int:
    """Return how many bytes one after the other an exchange takes: its critical path."""
    asked = {client: down for client, (down, _) in moved["publish", stage].items()}
    published = max(down + up for down, up in moved["publish", stage].values())
    ends = []
    for client, (down, up) in moved["collect", stage].items():
        arrivals = [
            asked[sender] + size
            for (layer, sender, receiver), size in blocks.items()
            if (layer, receiver) == (stage, client)
        ]
        assert len(arrivals) == CLIENTS - 1
        ends.append(max(published + down, *arrivals) + up)
    return max(ends)


# ---- what links must not change, and what repeats -----------------------------------------------


def test_links_never_change_weights(tmp_path: Path) -> None:
    runs = {
        links: model_bytes(train(tmp_path / f"run{number}", links=links, **cora()))
        for number, links in enumerate(("ideal", "4g", "rate:1mbit/delay:10ms/loss:0.3"))
    }
    assert runs["ideal"] == runs["4g"] == runs["rate:1mbit/delay:10ms/loss:0.3"]


def test_losses_are_the_same_in_every_run_of_a_seed(tmp_path: Path) -> None:
    def network(name: str, **keys: Any) -> dict[str, Any]:
        lossy = {"links": "rate:1mbit/delay:20ms/loss:0.2", **keys}
        return network_of(train(tmp_path / name, **cora(), **lossy))

    first = network("first")
    assert first == network("again")
    assert first["seconds"] > network("whole", links="rate:1mbit/delay:20ms")["seconds"]
    assert all(lane["sent_bytes"] > lane["bytes"] for lane in first["busiest"])


def test_ideal_links_are_not_modelled(tmp_path: Path) -> None:
    assert network_of(train(tmp_path / "run", **cora())) is None


def test_resumed_run_tells_of_its_last_attempt(tmp_path: Path) -> None:
    keys = {**cora(), "links": "wan-50ms"}
    whole = network_of(train(tmp_path / "whole", **keys))
    out = interrupted(tmp_path / "run", 4, **keys)  # in stage 0
    train(out, **keys, resume=out)
    network = network_of(out)
    assert model_bytes(out) == model_bytes(tmp_path / "whole")
    assert network["exchange_s"] == whole["exchange_s"]
    assert 0.4 < network["train_s"] < whole["train_s"]


def test_model_of_a_run_with_links_predicts_without(retexo: CommandLine, tmp_path: Path) -> None:
    small = ("--data-dir", write_graph(tmp_path / "data"), "--dataset", "small", *SMALL[:4])
    retexo.done("partition", "make", *small, "--out", "parts")
    (tmp_path / "links.toml").write_text('default = "4g"\n', encoding="utf-8")
    retexo.done("run", "--partitions", "parts", "--links", "links.toml", "--out", "run", *TINY)
    (tmp_path / "links.toml").unlink()
    assert "modelled" not in retexo.done("predict", "run", "--partitions", "parts", "--quiet")
    assert (tmp_path / "parts" / "predictions.json").is_file()


# ---- what is told -------------------------------------------------------------------------------


def test_clients_without_a_network_are_refused(tmp_path: Path) -> None:
    config = configured(tmp_path / "run", links="4g", **cora())
    with pytest.raises(ConfigurationError, match="links: '4g' .*; expected ideal"):
        run_clients(config, lambda job, client: pytest.fail(f"{job} asked client {client}"))
    with pytest.raises(ConfigurationError, match="links: '4g'"):
        train_over(config, MemoryChannel())
    assert not (tmp_path / "run").exists()


def test_terminal_and_report_keep_measured_and_modelled_apart(
    retexo: CommandLine, tmp_path: Path
) -> None:
    data = ("--data-dir", write_graph(tmp_path / "data"), "--dataset", "small")
    small = (*data, *SMALL, "--profile", "retexo")
    told = retexo.done("run", "--links", "wan-200ms", "--out", "run", *small).splitlines()
    assert next(line for line in told if "(measured)" in line).startswith("compute         ")
    # hello, 2 x (publish, collect, 2 rounds, validation), test; 0.4 s each.
    assert "network         4.80 s (modelled, wan-200ms)" in told
    page = (tmp_path / "run" / "report.html").read_text()
    assert "Compute (measured)" in page
    assert page.count("Network (modelled)") == 2
    plain = retexo.done("run", "--out", "plain", *small)
    assert "measured" not in plain
    assert "modelled" not in plain
    assert "(modelled)" not in (tmp_path / "plain" / "report.html").read_text()


def test_bad_link_files_end_a_run_before_it_begins(retexo: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "links.toml").write_text('default = "4g"\n"0-7" = "ideal"\n', encoding="utf-8")
    told = retexo.refused("run", "--links", "links.toml", "--out", "run", *TINY)
    assert re.fullmatch("links: links.toml: 0-7: .*client 7; expected 0 to 4", told)
    told = retexo.refused("run", "--links", "no.toml", "--out", "run", *TINY)
    assert told == "links: no.toml: cannot be read (No such file or directory)"
    told = retexo.refused("run", "--links", "4g", "--engine", "flower", "--out", "run", *TINY)
    assert re.fullmatch("links: '4g' .*engine flower; expected ideal, or engine inline", told)
    assert [path.name for path in tmp_path.iterdir()] == ["links.toml"]
