"""``row-dp``: what peers get of a node follows from a noised class of its features alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import numpy as np
import pytest

import retexo_fl
from retexo_fl.client.part import without_peers
from retexo_fl.client.preparation import make_parts
from retexo_fl.client.row_noise import MemoryRowReleases, RowNoise
from retexo_fl.errors import ConfigurationError, LocalProtocolError
from retexo_fl.training.row_classes import RowClasses
from tests.integration.test_second_rows import KEYS, NODES, Recorder, drawn_edges, written
from tests.support.runs import Interrupter, configured, model_bytes, train, train_over

NOISED: Final[dict[str, Any]] = {
    **{**KEYS, "layers": 2, "model": "gcn", "codec": "dense", "basis": "supervised"},
    **{"basis_blocks": 2, "second_rows": "none", "row_dp": 2.0},
}


@pytest.fixture(autouse=True)
def one_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have clients draw the same noise, and name their blocks alike."""
    monkeypatch.setattr("retexo_fl.client.factory.secret_in", lambda path: b"1" * 32)
    monkeypatch.setattr("retexo_fl.client.row_noise.os", SimpleNamespace(urandom=b"1".__mul__))
    monkeypatch.setattr("retexo_fl.federation.job_state.secrets.token_hex", "0".__mul__)


def sent(path: Path, out: Path, change: float = 0.0, **keys: Any) -> dict[Any, bytes]:
    """Train, one row changed that adds to no sum; return what crossed."""
    config = configured(out, **{**NOISED, "dataset": path, **keys})
    parts = [replace(part, partitioning="of-two") for part in make_parts(config)]
    rows = np.array(parts[0].features)
    some = np.flatnonzero(~np.asarray(parts[0].train_mask) & (np.diff(parts[0].indptr) > 3))[0]
    rows[some, 6] += change
    channel = Recorder()
    train_over(config, channel, [replace(parts[0], features=rows), *parts[1:]])
    return channel.blocks


def test_features_change_no_byte_that_peers_get_but_by_a_class(tmp_path: Path) -> None:
    path = written(tmp_path, "graph", drawn_edges())
    blocks = sent(path, tmp_path / "one")
    assert blocks == sent(path, tmp_path / "same")
    # Noise, and nothing else, is the other owner's secret.
    assert blocks == sent(path, tmp_path / "other", 1e-3)
    assert blocks != sent(path, tmp_path / "drawn", row_dp=1.0)
    assert {layer for _, _, layer in blocks} == {0}
    plain = [sent(path, tmp_path / f"plain{c}", c, row_dp=0.0) for c in (0.0, 1e-3)]
    assert plain[0] != plain[1]


def test_a_resume_sends_the_same_rows_and_ends_with_the_same_weights(tmp_path: Path) -> None:
    path = written(tmp_path, "graph", drawn_edges())
    keys = {**NOISED, "dataset": path}
    whole = train(tmp_path / "whole", **keys)
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "cut", Interrupter(3), **keys)
    train(tmp_path / "cut", **keys, resume=tmp_path / "cut")
    assert model_bytes(tmp_path / "cut") == model_bytes(whole)


def test_rows_are_those_of_classes_and_a_second_model_gets_none() -> None:
    rng = np.random.default_rng(2)
    classes = RowClasses(
        weight=rng.normal(size=(4, 3)), bias=np.zeros(3), rows=rng.normal(size=(3, 4))
    )
    rows, hashes = rng.normal(size=(5000, 4)), rng.integers(0, 2**63, 5000).astype(np.uint64)
    some = np.arange(1, 5000, 2)
    noise = RowNoise(1.0, "job")
    told = noise.rows(classes, rows, sent=some, hashes=hashes)
    assert {row.tobytes() for row in told[some]} == {row.tobytes() for row in classes.rows}
    assert not told[::2].any()
    own = (told[some] == classes.rows[classes.of(rows[some])]).all(axis=1).mean()
    assert own == pytest.approx(np.e / (np.e + 2), abs=0.04)
    np.testing.assert_array_equal(noise.rows(classes, rows, sent=some, hashes=hashes), told)
    # Where one node is another, all noise is: no answer but by classes can be compared.
    rows[1] *= -1
    another = RowNoise(1.0, "later").rows(classes, rows, sent=some, hashes=hashes)
    assert (another[some][1:] != told[some][1:]).any(axis=1).mean() > 0.3
    other = RowNoise(1.0, "job")
    other.follow_from(lambda: b"2" * 32)
    assert (other.rows(classes, rows, sent=some, hashes=hashes) != another).any()
    with pytest.raises(LocalProtocolError, match=r"^row-dp: classes of rows left in job job; expe"):
        noise.rows(replace(classes, bias=np.ones(3)), rows, sent=some, hashes=hashes)


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"second_rows": "full"}, "second-rows full, whose later rows follow from features wi"),
        ({"basis": "none"}, "basis none, by whose coordinates nodes are put into classes; expec"),
        ({"task": "regression"}, "task regression, whose labels are no classes; expected task cl"),
    ],
)
def test_what_tells_more_is_refused(tmp_path: Path, keys: dict[str, Any], expected: str) -> None:
    with pytest.raises(ConfigurationError, match=f"row-dp: 2 does not go with {expected}"):
        configured(tmp_path / "run", **{**NOISED, **keys})


@pytest.mark.parametrize("cut", [0.9, 0.2])
def test_a_plan_says_what_is_promised_and_where_it_does_not_pay(tmp_path: Path, cut: float) -> None:
    rng = np.random.default_rng(1)
    ends = rng.integers(0, NODES // 2, (2, 300)) * 2
    ends[1] += rng.random(300) < cut
    edges = np.unique(np.sort(ends[:, ends[0] // 2 != ends[1] // 2], axis=0), axis=1)
    keys = {**NOISED, "dataset": str(written(tmp_path, "graph", edges))}
    facts = retexo_fl.plan(**keys)["row_noise"]
    assert facts["cut_edges"] == pytest.approx((edges.sum(axis=0) % 2).mean())
    assert facts["chance_of_own"] == pytest.approx(np.exp(2) / (np.exp(2) + 2))
    assert facts["text"].startswith("Features of each node but train nodes have an epsilon of 2")
    assert ("Warning" in facts["text"]) == (cut < 0.5)


def test_a_part_without_peers_tells_nothing_and_spends_nothing(tmp_path: Path) -> None:
    noted: list[Any] = []
    path = written(tmp_path, "graph", drawn_edges())
    config = configured(tmp_path / "run", **{**NOISED, "dataset": path, "rounds": 1})
    parts = [without_peers(part) for part in make_parts(config)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MemoryRowReleases, "enter", lambda self, release: noted.append(release))
        train_over(config, Recorder(), parts)
        assert not noted
        train_over(replace(config, out=str(tmp_path / "other")), Recorder(), make_parts(config))
    assert len(noted) == config.clients
