"""A run's figures for node_exporter: by Prometheus' conventions, and never in a training's way."""

from __future__ import annotations

import json
import logging
import re
import stat
from pathlib import Path

import pytest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

import retexo_fl
from retexo_fl import PrometheusFile
from retexo_fl.errors import ConfigurationError
from retexo_fl.run_log.events import ExchangeClosed, Waiting
from tests.support.commands import ROOT


def figures(path: Path) -> dict[str, float]:
    """Return the values of a file by the names of their samples."""
    return {one.name: one.value for family in families(path) for one in family.samples}


def families(path: Path) -> list[Metric]:
    return [*text_string_to_metric_families(path.read_text())]


def test_a_run_keeps_its_figures_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "run.prom"
    seen: list[dict[str, float]] = []
    made = retexo_fl.run(
        profile="retexo",
        clients=3,
        hidden=8,
        rounds=3,
        out=tmp_path / "run",
        quiet=True,
        callbacks=[PrometheusFile(path, "mine"), lambda _: seen.append(figures(path))],
    )
    found, result = figures(path), made.result
    assert found["retexo_run_closed_rounds_total"] == 6
    assert found["retexo_run_payload_bytes_total"] == result.volumes["payload"]["total"]
    assert found["retexo_run_test_accuracy"] == result.test_accuracy
    assert (found["retexo_run_stages"], found["retexo_run_clients"]) == (2, 3)
    assert [one["retexo_run_finished"] for one in seen] == [0.0] * (len(seen) - 1) + [1.0]
    rounds = [one["retexo_run_closed_rounds_total"] for one in seen]
    assert rounds == sorted(rounds)
    # node_exporter runs as another user.
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert [*tmp_path.glob("run.prom*")] == [path]
    for family in families(path):
        assert re.fullmatch("retexo_run_[a-z]+(_[a-z]+)*", family.name)
        assert family.documentation.endswith(".")
        assert [one.labels for one in family.samples] == [{"run": "mine"}]


def test_who_is_waited_for_is_a_figure_of_now(tmp_path: Path) -> None:
    path = tmp_path / "run.prom"
    file = PrometheusFile(path, "mine")
    file(Waiting(stage=0, purpose="exchange", clients=(1, 2)))
    assert figures(path)["retexo_run_waiting_clients"] == 2
    file(ExchangeClosed(stage=0, vectors=1, missing=0, bytes_payload=7))
    assert figures(path)["retexo_run_waiting_clients"] == 0
    assert figures(path)["retexo_run_payload_bytes_total"] == 7


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("run.txt", "metrics-file: got .*run.txt; expected a name that ends in .prom"),
        ("none/run.prom", "metrics-file: .* cannot be written .No such file or directory."),
        ("a.prom", "metrics-file: .*a.prom cannot be written .Is a directory."),
    ],
)
def test_a_file_that_cannot_be_is_refused_at_first(tmp_path: Path, name: str, words: str) -> None:
    (tmp_path / "a.prom").mkdir()
    with pytest.raises(ConfigurationError, match=words):
        PrometheusFile(tmp_path / name, "mine")


def test_what_is_there_stays_until_a_run_has_begun(tmp_path: Path) -> None:
    path = tmp_path / "run.prom"
    path.write_text("of an earlier run")
    with pytest.raises(ConfigurationError, match="clients"):
        retexo_fl.run(clients=-1, out=tmp_path / "run", callbacks=[PrometheusFile(path, "mine")])
    assert path.read_text() == "of an earlier run"
    assert [*tmp_path.iterdir()] == [path]


def test_a_file_that_cannot_be_written_later_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    file = PrometheusFile(folder / "run.prom", "mine")
    folder.rmdir()
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            file(ExchangeClosed(stage=0, vectors=1, missing=0, bytes_payload=7))
    assert [*caplog.messages] == [
        f"metrics-file: {folder / 'run.prom'} could not be written (No such file or directory); "
        "the training goes on"
    ]


def test_every_figure_of_runs_on_the_dashboard_is_in_the_file() -> None:
    from retexo_fl.api.metrics_file import _COUNTERS, _GAUGES

    there = {f"retexo_run_{name}" for name in _GAUGES}
    there |= {f"retexo_run_{name}_total" for name in _COUNTERS}
    text = (ROOT / "docs" / "grafana.json").read_text(encoding="utf-8")
    asked = {
        name
        for panel in json.loads(text)["panels"]
        for target in panel.get("targets", [])
        for name in re.findall(r"\bretexo_run_[a-z_]+", target["expr"])
    }
    assert len(asked) > 8
    assert asked <= there
    # And the page names all of them.
    page = (ROOT / "docs" / "watching.md").read_text(encoding="utf-8")
    assert [name for name in there if f"_{name.removeprefix('retexo_run_')}`" not in page] == []
