"""What Prometheus reads of agents that train: figures by its conventions, without any name."""

from __future__ import annotations

import http.client
import json
import re
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

from retexo_fl.client.api import QUESTIONS
from retexo_fl.client.preparation import make_parts
from retexo_fl.config import make_config
from retexo_fl.exchange.link.reasons import Reason
from retexo_fl.run_log.events import RoundClosed
from tests.support.agents import AgentProcess, agents, train_with
from tests.support.commands import ROOT
from tests.support.limits import PERMISSIVE
from tests.support.runs import configured

pytestmark = pytest.mark.system

KEYS: dict[str, Any] = {"clients": 3, "hidden": 8, "rounds": 2, "layers": 2}
SETTINGS = {**PERMISSIVE, "metrics": "./metrics.sock"}
#: Every word that a label may have, whatever is trained by whom.
WORDS: Mapping[str, set[str]] = {
    "state": {"waiting", "computing", "exchanging"},
    "question": set(QUESTIONS),
    "doing": {"computing", "waiting"},
    "of": {"sums", "rows"},
    "link": {"connected", "away", "never_met"},
    "direction": {"sent", "received"},
    "measure": {"frame", "link", "tls", "wire", "payload"},
}


class UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=20)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(20)
        self.sock.connect(str(self._path))


def page(agent: AgentProcess, path: str) -> tuple[int, str]:
    connection = UnixConnection(agent.folder / "metrics.sock")
    connection.request("GET", path)
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


def scraped(text: str) -> dict[str, Metric]:
    return {family.name: family for family in text_string_to_metric_families(text)}


def value(families: Mapping[str, Metric], name: str, **labels: str) -> float:
    """Return the one sample of a name and labels."""
    family = families[name.removesuffix("_total")]
    (found,) = [one for one in family.samples if one.name == name and one.labels == labels]
    return float(found.value)


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[AgentProcess]]:
    parts = make_parts(make_config(KEYS))
    with agents(tmp_path_factory.mktemp("watched"), parts, settings=SETTINGS) as made:
        yield made


def test_agents_are_watched_while_they_train(watched: list[AgentProcess], tmp_path: Path) -> None:
    """In the clear, so that there are bytes; scraped all the time, by one who reads nothing too."""
    assert page(watched[0], "/health") == (200, "ok\n")
    assert page(watched[0], "/ready") == (200, "ok\n")
    texts: list[str] = []
    over = threading.Event()

    def scrape() -> None:
        while not over.is_set():
            texts.append(page(watched[0], "/metrics")[1])
            time.sleep(0.05)

    def pause(event: object) -> None:
        # Longer than figures are kept, so that the job is among them.
        if isinstance(event, RoundClosed) and (event.stage, event.round) == (0, 1):
            time.sleep(1.5)

    deaf = UnixConnection(watched[0].folder / "metrics.sock")
    deaf.request("GET", "/metrics")
    watcher = threading.Thread(target=scrape)
    watcher.start()
    try:
        train_with(watched, configured(tmp_path / "run", **KEYS), [pause])
    finally:
        over.set()
        watcher.join()
    deaf.close()
    time.sleep(1.1)
    families = scraped(page(watched[0], "/metrics")[1])
    status = watched[0].status()
    # Both layers' rounds, asked of this process.
    assert value(families, "retexo_agent_answers_total", question="train_layer") == 4
    assert value(families, "retexo_agent_questions_answered") == status["questions"]["answered"] > 0
    assert value(families, "retexo_agent_questions_limit") == status["questions"]["most"]
    assert value(families, "retexo_agent_peers", link="connected") == 2
    channels = [one for peer in status["peers"] for one in peer["channels"].values()]
    frames = sum(one["frame_bytes_sent"] for one in channels)
    sent = {"direction": "sent", "measure": "frame"}
    assert value(families, "retexo_agent_peer_bytes_total", **sent) == frames > 0
    assert value(families, "process_resident_memory_bytes") > 2**20
    assert value(families, "retexo_agent_answering_seconds_total", doing="computing") > 0
    # It was seen at work, and no counter ever fell.
    seen = [scraped(text) for text in texts]
    assert max(sum(one.value for one in f["retexo_agent_jobs"].samples) for f in seen) == 1
    for name, family in families.items():
        if family.type == "counter":
            totals = [sum(one.value for one in f[name].samples) for f in seen if name in f]
            assert totals == sorted(totals), name


def test_names_and_units_are_prometheus_own(watched: list[AgentProcess]) -> None:
    """As its documentation demands, and `promtool check metrics`."""
    families = scraped(page(watched[0], "/metrics")[1])
    ours = {name: family for name, family in families.items() if name.startswith("retexo_")}
    assert len(ours) > 10
    for name, family in ours.items():
        assert re.fullmatch(r"retexo_agent_[a-z]+(_[a-z]+)*", name), name
        assert family.documentation.endswith("."), name
        assert family.type in {"counter", "gauge"}
        assert not name.endswith(("_total", "_count", "_sum", "_bucket", "_milliseconds", "_mb"))
        for sample in family.samples:
            assert sample.name == (f"{name}_total" if family.type == "counter" else name)
            # A unit stands at the end.
            assert re.search(r"(bytes|seconds)(?!$)", name) is None, name


def test_no_label_has_a_name_of_anything(watched: list[AgentProcess]) -> None:
    text = page(watched[0], "/metrics")[1]
    for family in scraped(text).values():
        for sample in family.samples:
            for label, word in sample.labels.items():
                if label == "version":
                    assert re.fullmatch(r"[\w.+]+", word)
                elif label == "reason":
                    assert word in set(Reason)
                elif label == "error":
                    assert re.fullmatch("[A-Za-z]+", word)
                else:
                    assert word in WORDS[label], (label, word)
    assert not re.search(r"job-[0-9a-f]|predict-[0-9a-f]|tcp:|/", re.sub("(?m)^# .*$", "", text))


def test_under_masks_bytes_are_not_told(tmp_path: Path) -> None:
    """They tell of rows; code of the server's may reach the port. So it is with the status."""
    with agents(tmp_path, make_parts(make_config(KEYS)), settings=SETTINGS) as made:
        assert "retexo_agent_peer_bytes_total" in page(made[1], "/metrics")[1]
        train_with(made, configured(tmp_path / "run", **KEYS, secure_aggregation="masked"))
        time.sleep(1.1)
        families = scraped(page(made[1], "/metrics")[1])
    assert "retexo_agent_peer_bytes" not in families
    assert value(families, "retexo_agent_answers_total", question="train_layer") >= 4


def test_an_agent_without_all_peers_is_healthy_and_not_ready(tmp_path: Path) -> None:
    parts = make_parts(make_config({**KEYS, "clients": 2}))
    with agents(tmp_path, parts, start=False, settings=SETTINGS) as (agent, _):
        roster = tmp_path / "roster.toml"
        told = roster.read_text()
        roster.write_text("[[member]]" + told.split("[[member]]")[1])
        agent.start()
        assert page(agent, "/health") == (200, "ok\n")
        assert page(agent, "/ready") == (503, "1 of 1 peers are not in the roster\n")
        with suppress(OSError):
            agent.stop()
    assert not (agent.folder / "metrics.sock").exists()


def test_every_figure_of_the_dashboard_is_in_a_scrape(watched: list[AgentProcess]) -> None:
    board = json.loads((ROOT / "docs" / "grafana.json").read_text(encoding="utf-8"))
    asked = [target["expr"] for panel in board["panels"] for target in panel.get("targets", [])]
    assert len(asked) > 8
    samples = {
        sample.name
        for agent in watched
        for family in scraped(page(agent, "/metrics")[1]).values()
        for sample in family.samples
    }
    # Of agents that forward Flower's connection.
    samples.add("retexo_agent_flower_bytes_total")
    assert all(re.search(r"\bretexo_(agent|run)_|\bprocess_", query) for query in asked)
    # Those of runs: tests/unit/api/test_metrics_file.py.
    names = {
        name for query in asked for name in re.findall(r"\b(?:retexo_agent|process)_\w+", query)
    }
    assert names <= samples
    page_text = (ROOT / "docs" / "watching.md").read_text(encoding="utf-8")
    ours = {name.removeprefix("retexo_agent_") for name in samples if name.startswith("retexo_a")}
    assert [name for name in ours if f"`{name}" not in page_text] == []
