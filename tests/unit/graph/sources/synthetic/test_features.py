"""Features: they tell the class as faintly as asked for."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.sparse import csr_array

from retexo_fl.graph.sources.synthetic import features, parse_synthetic
from retexo_fl.graph.sources.synthetic.features import make_features

_LABELS = np.arange(9000, dtype=np.int32) % 3


def _dense(text: str) -> np.ndarray:
    made = make_features(parse_synthetic(f"synthetic:nodes=9000,classes=3,{text}"), _LABELS)
    assert isinstance(made, np.ndarray)
    return made


def _sparse(text: str) -> csr_array:
    made = make_features(parse_synthetic(f"synthetic:nodes=9000,classes=3,{text}"), _LABELS)
    assert isinstance(made, csr_array)
    return made


def test_clouds_have_unit_noise_around_means_at_given_distance() -> None:
    made = _dense("features=20,signal=3")
    assert made.dtype == np.float32
    means = np.stack([made[one == _LABELS].mean(axis=0) for one in range(3)])
    np.testing.assert_allclose(np.linalg.norm(means, axis=1), 3, rtol=0.05)
    np.testing.assert_allclose((made - means[_LABELS]).std(axis=0), 1, rtol=0.05)


def test_clouds_without_a_signal_say_nothing() -> None:
    made = _dense("features=20,signal=0")
    means = np.stack([made[one == _LABELS].mean(axis=0) for one in range(3)])
    assert np.abs(means).max() < 0.1


def test_words_are_ones_in_ascending_columns() -> None:
    made = _sparse("features=100,words=6")
    assert made.shape == (9000, 100)
    assert made.dtype == np.float32
    assert set(made.data) == {1.0}
    counts = np.diff(made.indptr)
    assert counts.min() >= 1
    assert counts.max() == 6
    assert made.has_canonical_format


def test_words_of_the_topic_are_as_many_as_the_signal_says() -> None:
    made = _sparse("features=1000,words=10,signal=0.4")
    for one in range(3):
        shares = np.sort(made[one == _LABELS].mean(axis=0))[::-1]
        others = np.sort(made[one != _LABELS].mean(axis=0))[::-1]
        # A topic is a tenth of the words; four of ten draws are spread over it.
        assert shares[:100].sum() > others[:100].sum() + 1
    common = _sparse("features=1000,words=10,signal=0")
    means = np.stack([np.asarray(common[one == _LABELS].mean(axis=0)) for one in range(3)])
    assert np.abs(means - means.mean(axis=0)).max() < 0.03
    # Some words are common, most are rare.
    by_rank = np.sort(means.mean(axis=0))[::-1]
    assert by_rank[:125].sum() == pytest.approx(by_rank.sum() / 2, rel=0.1)


def test_one_word_and_one_feature_are_enough() -> None:
    assert _sparse("features=1,words=3").toarray().tolist() == [[1.0]] * 9000
    assert _dense("features=1").shape == (9000, 1)


@pytest.mark.parametrize("text", ["features=8", "features=50,words=5"])
def test_the_seed_decides(text: str) -> None:
    def drawn(seed: int) -> np.ndarray:
        spec = parse_synthetic(f"synthetic:nodes=9000,classes=3,seed={seed},{text}")
        made = make_features(spec, _LABELS)
        return made if isinstance(made, np.ndarray) else made.toarray()

    np.testing.assert_array_equal(drawn(1), drawn(1))
    assert (drawn(1) != drawn(2)).any()


def test_rows_are_drawn_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(features, "_CHUNK_VALUES", 1000)
    assert np.isfinite(_dense("features=30")).all()
    assert _sparse("features=30,words=7").has_canonical_format
