"""Scaling of features."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy.sparse import csr_array

from retexo_fl.errors import ConfigurationError
from retexo_fl.graph import normalise_features

_VALUES = np.array([[3, -4, 0], [0, 0, 0], [0, 2, 0], [1, 1, 2]], dtype=np.float32)
_ROW = np.array([[3 / 7, -4 / 7, 0], [0, 0, 0], [0, 1, 0], [0.25, 0.25, 0.5]], dtype=np.float32)
_L2 = np.array([[0.6, -0.8, 0], [0, 0, 0], [0, 1, 0], np.array([1, 1, 2]) / 6**0.5], np.float32)


@pytest.mark.parametrize(("how", "expected"), [("none", _VALUES), ("row", _ROW), ("l2", _L2)])
def test_normalise_features_scales_rows(how: str, expected: np.ndarray) -> None:
    dense = normalise_features(_VALUES, how)
    sparse = normalise_features(csr_array(_VALUES), how)
    assert isinstance(dense, np.ndarray)
    assert isinstance(sparse, csr_array)
    for found in (dense, sparse.toarray()):
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_normalise_features_leaves_its_input_alone() -> None:
    dense, sparse = _VALUES.copy(), csr_array(_VALUES)
    normalise_features(dense, "row")
    normalise_features(sparse, "row")
    np.testing.assert_array_equal(dense, _VALUES)
    np.testing.assert_array_equal(sparse.toarray(), _VALUES)


def test_normalise_features_takes_a_matrix_without_entries() -> None:
    empty = normalise_features(csr_array((3, 4), dtype=np.float32), "l2")
    assert empty.shape == (3, 4)
    assert isinstance(empty, csr_array)
    assert empty.nnz == 0


@given(
    hnp.arrays(np.float32, (6, 5), elements=st.floats(-8, 8, width=32)),
    st.sampled_from(["row", "l2"]),
    st.integers(1, 5),
)
def test_normalise_features_does_not_depend_on_other_rows(
    values: np.ndarray, how: str, cut: int
) -> None:
    whole = normalise_features(values, how)
    parts = np.concatenate([normalise_features(part, how) for part in np.split(values, [cut])])
    np.testing.assert_array_equal(whole, parts)


def test_normalise_features_refuses_an_unknown_scaling() -> None:
    with pytest.raises(ConfigurationError, match="feature-normalisation: got 'max'; expected one"):
        normalise_features(_VALUES, "max")
