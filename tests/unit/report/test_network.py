"""What the page says of a modelled network, and that nothing measured stands beside it as one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from retexo_fl.errors import RunDirectoryError
from retexo_fl.report import write_report
from retexo_fl.run_log.json_form import to_json
from retexo_fl.simulation.links import Links, parse_link
from retexo_fl.simulation.virtual_network import VirtualNetwork
from tests.unit.report.runs import Recipe, write_run
from tests.unit.report.test_page import Page


def modelled() -> dict[str, Any]:
    """Return the facts of a network that moved a few messages."""
    lines = {"default": parse_link("delay:3s"), "server": parse_link("rate:8kbit/delay:1s")}
    network = VirtualNetwork(Links(text="links.toml", lines=lines), clients=5, seed=0)
    network.send_to_clients({0: 1000, 1: 1000}, phase="exchange")
    network.exchange({(0, 1): 777})
    for client in (0, 1):
        network.reply_to_server(client, 2000)
    network.send_to_clients({0: 1000}, phase="train")
    network.reply_to_server(0, 1000)
    facts: dict[str, Any] = to_json(network.facts())
    return facts


def write_modelled(folder: Path, **changes: object) -> Path:
    run = write_run(folder, Recipe())
    result = json.loads((run / "result.json").read_text())
    result["network"] = {**modelled(), **changes}
    (run / "result.json").write_text(json.dumps(result | {"attempts": 2}))
    return run


def test_report_keeps_measured_and_modelled_seconds_apart(tmp_path: Path) -> None:
    page = Page(write_report(write_modelled(tmp_path)))
    assert page.said("dt")[-2:] == ["Compute (measured)", "Network (modelled)"]
    # There 2 s, from client 0 to 1 in 3 s, back 3 s; then 2 s there and 2 s back.
    assert page.said("b")[-2:] == ["4.83 s", "12.0 s"]
    assert "between clients 25 %" in page.text()
    assert "Duration" not in page.text()
    assert "Network (modelled)" in page.said("h2")
    text = page.text()
    assert "not measured" in text
    assert "Only the last attempt is counted." in text


def test_report_lists_phases_links_and_busiest(tmp_path: Path) -> None:
    page = Page(write_report(write_modelled(tmp_path)))
    heads, cells = page.said("th"), page.said("td")
    phases = heads[heads.index("greeting") :][:5]
    assert phases == ["greeting", "exchanges", "rounds", "validation and test", "total"]
    for expected in ("8.00 s", "66.67 %", "3.00 s", "4.00 s", "33.33 %", "8 kbit/s", "no limit"):
        assert expected in cells
    assert "3000 ms" in cells
    assert {"server to client 0", "client 1 to server"} <= {*heads, *cells}


def test_report_without_a_network_says_nothing_of_it(tmp_path: Path) -> None:
    text = Page(write_report(write_run(tmp_path, Recipe()))).text()
    assert "Duration" in text
    assert "odelled" not in text
    assert "easured)" not in text


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"seconds": None}, "network: key 'seconds' is null, expected a finite number"),
        ({"lines": 3}, "network: key 'lines' is 3, expected an object"),
        ({"busiest": [{}]}, r"busiest\[0\]: key 'messages' is absent"),
    ],
)
def test_damaged_networks_are_named(
    tmp_path: Path, changes: dict[str, object], expected: str
) -> None:
    with pytest.raises(RunDirectoryError, match=expected):
        write_report(write_modelled(tmp_path, **changes))
