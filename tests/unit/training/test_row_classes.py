"""Noised classes in place of rows: their chances, what they stand for, how they travel."""

from __future__ import annotations

import math
from dataclasses import replace
from decimal import Decimal, localcontext

import numpy as np
import pytest

from retexo_fl.config import make_config
from retexo_fl.errors import RemoteProtocolError
from retexo_fl.training.basis import Basis, BasisForm
from retexo_fl.training.ridge import gram_sums
from retexo_fl.training.row_classes import (
    RowClasses,
    chance_of_own,
    noised,
    parted_basis,
    share_of_other,
    told_values,
    told_with_basis,
)
from retexo_fl.training.stage_model import ModelShape

SHAPE = ModelShape.of(
    make_config({"second-rows": "none", "basis": "supervised", "basis-blocks": 2, "row-dp": 1.5}),
    inputs=9,
    classes=3,
)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 2.0, 4.0, 12.0])
@pytest.mark.parametrize("count", [2, 7, 40])
def test_no_class_is_told_more_than_e_to_the_epsilon_times_as_often(
    epsilon: float, count: int
) -> None:
    other = share_of_other(epsilon, count)
    own = 2**64 - (count - 1) * other
    with localcontext(prec=60):
        most = Decimal(epsilon).exp()
        assert other <= own <= most * other
        # And hardly less often: nothing is given away.
        assert own >= most * other * (1 - Decimal(2) ** -30)
    assert own / 2**64 == pytest.approx(chance_of_own(epsilon, count), rel=1e-9)


def test_each_word_tells_one_class() -> None:
    share = share_of_other(1.5, 3)
    words = [0, share - 1, share, 2 * share - 1, 2 * share, 2**64 - 1]
    for own, told in enumerate([[1, 1, 2, 2, 0, 0], [0, 0, 2, 2, 1, 1], [0, 0, 1, 1, 2, 2]]):
        found = noised(np.full(6, own), 1.5, np.array(words, np.uint64), count=3)
        assert found.tolist() == told
    assert noised(np.zeros(1, int), 1.5, np.array([5], np.uint64), count=1).tolist() == [0]


def test_classes_are_told_as_often_as_promised() -> None:
    words = np.random.default_rng(5).integers(0, 2**64, 10**6, np.uint64)
    told = np.bincount(noised(np.full(10**6, 2), 2.0, words, count=5), minlength=5) / 10**6
    own = math.exp(2) / (math.exp(2) + 4)
    assert chance_of_own(2.0, 5) == pytest.approx(own)
    expected = np.full(5, (1 - own) / 4)
    expected[2] = own
    assert np.abs(told - expected).max() < 5 * math.sqrt(0.25 / 10**6)


def test_a_row_is_what_is_expected_of_a_node_of_which_its_class_was_told() -> None:
    rng = np.random.default_rng(3)
    labels = rng.choice(3, 400, p=[0.6, 0.3, 0.1])
    rows = rng.normal(size=(400, SHAPE.inputs)) + 3 * np.eye(3, SHAPE.inputs)[labels]
    sums = sum(gram_sums(rows[some], labels[some], 3) for some in np.split(np.arange(400), 4))
    classes = RowClasses.of_sums(np.asarray(sums), SHAPE, 1.5)
    assert (classes.of(rows) == labels).mean() > 0.9
    # By drawing: labels as they are, told with noise, and the mean row of their classes.
    means = np.stack([rows[labels == k].mean(axis=0) for k in range(3)])
    drawn = np.random.default_rng(4).choice(labels, 10**6)
    told = noised(drawn, 1.5, rng.integers(0, 2**64, 10**6, np.uint64), count=3)
    for k in range(3):
        expected = (np.bincount(drawn[told == k], minlength=3) / (told == k).sum()) @ means
        np.testing.assert_allclose(classes.rows[k], expected, atol=0.02)


def test_a_class_without_train_nodes_stands_for_all_nodes() -> None:
    rows = np.random.default_rng(0).normal(size=(20, SHAPE.inputs))
    classes = RowClasses.of_sums(gram_sums(rows, np.arange(20) % 2, 3), SHAPE, 100.0)
    assert np.isfinite(classes.told()).all()


@pytest.mark.parametrize(("bits", "dtype"), [(8, "float32"), (32, "float32"), (32, "float64")])
def test_classes_travel_before_a_basis(bits: int, dtype: str) -> None:
    rng = np.random.default_rng(1)
    form = BasisForm(features=9, dtype=dtype, bits=bits)
    basis = form.encode(Basis(mean=rng.normal(size=9), directions=rng.normal(size=(9, 6))))
    told = rng.normal(size=told_values(SHAPE))
    found, plain = parted_basis(told_with_basis(told, basis), SHAPE)
    np.testing.assert_array_equal(found, told.astype("float64" if dtype == "float64" else "f4"))
    np.testing.assert_array_equal(plain, basis)
    assert RowClasses.of_told(found, SHAPE).rows.shape == (3, 6)
    alone = replace(SHAPE, tells_classes=False)
    assert parted_basis(basis, alone)[1] is not None
    assert parted_basis(basis, alone)[1].tobytes() == basis.tobytes()


@pytest.mark.parametrize(
    ("told", "refusal"),
    [
        (np.zeros(3), "classes of rows have 3 values; expected 39"),
        (np.full(told_values(SHAPE), np.nan), "classes of rows hold values that are not finite"),
    ],
)
def test_other_values_are_refused(told: np.ndarray, refusal: str) -> None:
    with pytest.raises(RemoteProtocolError, match=refusal):
        RowClasses.of_told(told, SHAPE)
