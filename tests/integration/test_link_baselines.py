"""What degrees and sides alone make of test edges stands beside the model, where a run is read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.support.cli import TINY, CommandLine
from tests.support.runs import result_of


@pytest.fixture
def retexo(capfd: pytest.CaptureFixture[str]) -> CommandLine:
    return CommandLine(capfd)


@pytest.mark.parametrize("is_bipartite", [True, False])
def test_a_run_on_edges_says_what_degrees_alone_reach(
    tmp_path: Path, retexo: CommandLine, caplog: pytest.LogCaptureFixture, is_bipartite: bool
) -> None:
    generator = np.random.default_rng(2)
    users, items = generator.integers(0, 40, 200), generator.integers(40, 60, 200)
    ends = np.unique(np.stack((users, items)), axis=1)
    if not is_bipartite:
        ends = np.concatenate((ends, [[0, 1], [1, 2]]), axis=1)
    features = generator.normal(size=(60, 3)).astype(np.float32)
    np.savez(tmp_path / "shop.npz", edge_index=ends, x=features)
    chosen: list[str | Path] = [
        "--dataset",
        tmp_path / "shop.npz",
        "--task",
        "links",
        "--clients",
        "3",
    ]
    words: list[str | Path] = [
        "run",
        *chosen,
        "--split",
        "random:0.6/0.1/0.3",
        *TINY[:-1],
        "--out",
        tmp_path / "r",
    ]
    ended = retexo(*words)
    assert ended.code == 0, ended.err
    profile = result_of(tmp_path / "r")["profile"]
    told = f"degrees alone rank test edges with ROC AUC {profile['degrees_auc']:.4f}"
    assert 0.3 < profile["degrees_auc"] < 0.9
    assert f"degrees alone   {profile['degrees_auc']:.4f} (ROC AUC of test edges)" in ended.out
    assert told in (tmp_path / "r" / "report.html").read_text()
    assert told in ended.err + ended.out
    assert ("sides_auc" in profile) == is_bipartite
    assert ("task links: the graph is bipartite" in caplog.text) == is_bipartite
    assert ("--nodes twice" in caplog.text and "--model rel-sage" in caplog.text) == is_bipartite
