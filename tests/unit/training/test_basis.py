"""The supervised subspace: its products, its directions, and that it knows no partition."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.sparse import csr_array

from retexo_fl.errors import RemoteProtocolError
from retexo_fl.training.basis import (
    Basis,
    BasisBuilder,
    BasisForm,
    basis_width,
    column_squares,
    direction_sums,
    evening_scales,
    feature_sums,
    joined,
    label_products,
    parted,
    square_sums,
)

RNG = np.random.default_rng(0)
ROWS = RNG.normal(size=(60, 12)) @ np.diag(np.linspace(3, 0.1, 12)) + 2.0
LABELS = RNG.integers(0, 3, 60)
TRAIN = np.arange(0, 60, 2)


def form_of(features: int, bits: int = 32) -> BasisForm:
    return BasisForm(features=features, dtype="float64", bits=bits)


def flat(basis: Basis) -> np.ndarray:
    return form_of(len(basis.mean)).encode(basis)


def built(
    blocks: int,
    *,
    rows: np.ndarray = ROWS,
    owners: np.ndarray | None = None,
    bits: int = 32,
    evens: bool = False,
) -> Basis:
    """Build a basis from the sums of several owners."""
    owners = np.zeros(len(rows), int) if owners is None else owners
    everyone = range(owners.max() + 1)
    mean = sum(feature_sums(rows[owners == one]) for one in everyone) / len(rows)
    width = basis_width(blocks=blocks, classes=3, features=rows.shape[1])
    form = form_of(rows.shape[1], bits)
    squares = np.asarray(sum(column_squares(rows[owners == one]) for one in everyone))
    evened = squares if evens else None
    builder = BasisBuilder(np.asarray(mean), width=width, form=form, squares=evened)
    while not builder.is_complete:
        sums = np.zeros(())
        for one in everyone:
            mine = TRAIN[owners[TRAIN] == one]
            last = builder.last
            if last.directions.shape[1]:
                sums = sums + direction_sums(rows[mine], last)
            else:
                sums = sums + label_products(rows[mine], last, LABELS[mine], 3)
        builder.add(sums)
    return form.decode(builder.basis(len(TRAIN)))


class Longer(BasisForm):
    """Has directions that are twice as long as they should be, as coding makes some a little."""

    def decode(self, array: np.ndarray, is_evened: bool = False) -> Basis:
        """Return what was coded, longer."""
        found = super().decode(array, is_evened)
        return replace(found, directions=2 * found.directions)


@pytest.mark.parametrize("form", [BasisForm, Longer])
@pytest.mark.parametrize("bits", [32, 8])
@pytest.mark.parametrize("offset", [0.0, 1003.0])
@pytest.mark.parametrize("columns", [1, 12])
@pytest.mark.parametrize("evens", [False, True])
def test_no_sum_of_products_exceeds_its_bound(
    evens: bool, columns: int, offset: float, bits: int, form: type[BasisForm]
) -> None:
    """One feature that is all there is to a label comes near it; whatever the mean, and coding."""
    noise = RNG.normal(size=(60, columns)) * (columns > 1)
    labels = np.arange(60) % 2
    rows = offset + (2.0 * labels - 1)[:, None] + noise
    rows[:, columns // 2 :] *= 20.0
    sums = feature_sums(rows)
    coding = form(features=columns, dtype="float32", bits=bits)
    # As much as rounding may take from the numbers of 60 clients.
    of_columns = column_squares(rows) - 60 * 2.0**-21 if evens else None
    builder = BasisBuilder(sums / 60, width=min(4, columns), form=coding, squares=of_columns)
    of_rows, of_labels = square_sums(rows, labels, 2)
    squares = (of_rows - 60 * 2.0**-21, of_labels)
    while not builder.is_complete:
        last = builder.last
        if last.directions.shape[1]:
            made = direction_sums(rows, last)
        else:
            made = label_products(rows, last, labels, 2)
        bound = builder.reach(squares, sums, 60)
        assert np.abs(made).max() <= bound
        if columns == 1:
            assert bound < 3 * np.abs(made).max()
        builder.add(made)
    if columns == 1:
        made = direction_sums(rows, builder.last)
        assert np.abs(made).max() <= builder.reach(squares, sums, 60) < 3 * np.abs(made).max()


def test_bases_that_travel_together_are_those_that_travel_alone() -> None:
    for bits in (32, 8, 4):
        form = form_of(12, bits)
        bases = [
            form.encode(Basis(mean=ROWS[0], directions=d)) for d in (ROWS[:24].T, ROWS[1:25].T)
        ]
        for count in (1, 2):
            found = parted(joined(bases[:count]), count)
            assert [part.tobytes() for part in found] == [part.tobytes() for part in bases[:count]]


@pytest.mark.parametrize(
    ("array", "sentence"),
    [
        (np.zeros(7, np.float32), "an array has 7 values; expected a multiple of 2"),
        (np.zeros(3, np.uint8), "3 bytes are not 2 arrays behind the lengths of all but the last"),
        (np.frombuffer(b"\x05\0\0\0\1\1\1\1", np.uint8), "8 bytes are not 2 arrays behind"),
        (np.frombuffer(b"\xff\xff\xff\xff\1", np.uint8), "5 bytes are not 2 arrays behind"),
    ],
)
def test_what_is_not_two_arrays_is_refused(array: np.ndarray, sentence: str) -> None:
    with pytest.raises(RemoteProtocolError, match=sentence):
        parted(array, 2)


def test_squares_are_of_sparse_rows_and_labels_of_any_form() -> None:
    rows = np.where(ROWS > 2, ROWS, 0)
    expected = (rows**2).sum()
    for found in (rows, csr_array(rows)):
        assert square_sums(found, LABELS, 3) == pytest.approx((expected, 60))
    several = np.array([[1, 0, -1], [1, 1, 0]])
    assert square_sums(rows[:2], several, 3)[1] == 3
    numbers = np.array([3.0, -4.0])
    assert square_sums(rows[:2], numbers, 1)[1] == 25


@pytest.mark.parametrize("form", [np.asarray, csr_array])
def test_columns_are_evened_by_the_eighth_root_of_their_squares(form: Callable[..., Any]) -> None:
    rows = np.where(ROWS > 2, ROWS, 0.0) * [1e-3, 1, *[10] * 9, 0]
    squares = column_squares(form(rows))
    np.testing.assert_allclose(squares, (rows**2).sum(axis=0))
    scales = evening_scales(squares)
    assert (scales.max(), scales[0], scales[-1]) == (1.0, 1.0, 1.0)
    np.testing.assert_allclose(scales[:-1], (squares[:-1] / squares[0]) ** -0.125)
    assert evening_scales(np.zeros(3)).tolist() == [1.0] * 3


@pytest.mark.parametrize("bits", [32, 8])
@pytest.mark.parametrize("columns", [0, 2])
def test_scales_of_a_block_travel_with_it(bits: int, columns: int) -> None:
    form, scales = form_of(12, bits), 2.0 ** -np.linspace(0, 15, 12)
    block = Basis(mean=ROWS[0], directions=ROWS[1 : 1 + columns].T, scales=scales)
    sent = form.encode(block)
    plain = form.encode(replace(block, scales=None))
    assert len(sent) - len(plain) == 12
    found = form.decode(sent, is_evened=True)
    assert found.scales is not None
    np.testing.assert_allclose(found.scales, scales, rtol=0.023 if bits == 8 else 1e-15)
    assert found.directions.tobytes() == form.decode(plain).directions.tobytes()
    expected = (ROWS - found.mean) * found.scales @ found.directions
    np.testing.assert_allclose(found.coordinates(ROWS), expected, rtol=1e-9, atol=1e-9)
    with pytest.raises(RemoteProtocolError, match="expected"):
        form.decode(sent[: 24 if bits == 8 else 12], is_evened=True)
    if bits == 32:
        sent[13] = np.nan
        with pytest.raises(RemoteProtocolError, match="not finite"):
            form.decode(sent, is_evened=True)


@pytest.mark.parametrize("bits", [32, 8])
def test_squares_that_travel_are_nearly_what_they_were(bits: int) -> None:
    form, squares = form_of(12, bits), 10.0 ** np.arange(-9, 3)
    found = form.decode_squares(form.encode_squares(squares))
    np.testing.assert_allclose(found, squares, rtol=0.008 if bits == 8 else 0)
    for bad in (-squares, squares * np.nan):
        with pytest.raises(RemoteProtocolError, match="below 0 or not finite"):
            form.decode_squares(form.encode_squares(bad))
    with pytest.raises(RemoteProtocolError, match="dtype"):
        form.decode_squares(squares.astype(np.float32))


@pytest.mark.parametrize("evens", [False, True])
def test_directions_span_the_krylov_space_of_the_labels(evens: bool) -> None:
    found = built(3, evens=evens)
    scales = evening_scales(column_squares(ROWS)) if evens else np.ones(12)
    found = replace(found, directions=found.directions / scales[:, None])
    centred = (ROWS[TRAIN] - ROWS.mean(axis=0)) * scales
    first = centred.T @ np.eye(3)[LABELS[TRAIN]]
    gram = centred.T @ centred
    space = np.concatenate([first, gram @ first, gram @ gram @ first], axis=1)
    outside = space - found.directions @ np.linalg.lstsq(found.directions, space, rcond=None)[0]
    assert np.abs(outside).max() < 1e-8 * np.abs(space).max()
    products = found.directions.T @ found.directions
    np.testing.assert_allclose(products, products[0, 0] * np.eye(9), atol=1e-9 * products[0, 0])


def test_coordinates_have_a_mean_square_near_one() -> None:
    coordinates = built(3).coordinates(ROWS)[TRAIN]
    assert 0.5 < np.mean(coordinates**2) < 2.0


def test_owners_change_nothing() -> None:
    owners = RNG.integers(0, 7, 60)
    np.testing.assert_allclose(flat(built(3, owners=owners)), flat(built(3)), atol=1e-12)


def test_sparse_rows_give_what_dense_ones_do() -> None:
    rows = np.where(RNG.random((20, 9)) < 0.3, RNG.normal(size=(20, 9)), 0)
    mean, labels = rows.mean(axis=0), RNG.integers(0, 3, 20)
    scales = RNG.random(9)
    block = Basis(mean=mean, directions=RNG.normal(size=(9, 2)), scales=scales)
    sparse = csr_array(rows)
    for dense, other in (
        (feature_sums(rows), feature_sums(sparse)),
        (column_squares(rows), column_squares(sparse)),
        (label_products(rows, block, labels, 3), label_products(sparse, block, labels, 3)),
        (direction_sums(rows, block), direction_sums(sparse, block)),
        (block.coordinates(rows), block.coordinates(sparse)),
    ):
        assert isinstance(other, np.ndarray)
        np.testing.assert_allclose(other, dense, atol=1e-12)
    centred = (rows - mean) * scales
    expected = centred.T @ (centred @ block.directions)
    np.testing.assert_allclose(direction_sums(rows, block), expected, atol=1e-12)


def test_a_basis_has_no_more_directions_than_features() -> None:
    assert built(5).directions.shape == (12, 12)
    assert basis_width(blocks=2, classes=7, features=1433) == 14


def test_directions_that_add_nothing_are_zero() -> None:
    found = built(2, rows=np.repeat(ROWS[:, :1], 12, axis=1))
    assert np.isfinite(flat(found)).all()
    assert int((np.abs(found.directions).max(axis=0) > 0).sum()) == 1
    still = built(2, rows=np.zeros((60, 12)))
    assert not still.directions.any()


@pytest.mark.parametrize("bits", [8, 4])
def test_few_bits_span_nearly_the_same(bits: int) -> None:
    exact, coded = built(3).directions, built(3, bits=bits).directions
    directions = exact / np.linalg.norm(exact, axis=0)[0]
    # Cosines of the angles between the two subspaces.
    inside = directions.T @ np.linalg.qr(coded)[0]
    cosines = np.linalg.svd(inside, compute_uv=False)
    assert cosines[:6].min() > (0.999 if bits == 8 else 0.9)


def test_a_coded_basis_takes_a_byte_a_value_and_comes_back() -> None:
    form = BasisForm(features=12, dtype="float32", bits=8)
    basis = built(2)
    coded = form.encode(basis)
    assert coded.dtype == np.uint8
    assert len(coded) <= 2 * 12 + 8 + 1 + 12 * 6
    found = form.decode(coded)
    scale = np.abs(basis.directions).max()
    np.testing.assert_allclose(found.directions, basis.directions, atol=scale / 50)
    np.testing.assert_allclose(found.mean, basis.mean, rtol=0.01)
    # A mean that was sent once is the same ever after.
    again = form.decode(form.encode(Basis(mean=found.mean, directions=basis.directions)))
    np.testing.assert_array_equal(again.mean, found.mean)


def test_sums_are_what_they_were_on_average() -> None:
    form, sums = form_of(12, 4), RNG.normal(size=(12, 3))
    found = [form.decode_sums(form.encode_sums(sums, str(n))) for n in range(2000)]
    np.testing.assert_allclose(np.mean(found, axis=0), sums.reshape(-1), atol=0.1)
    assert found[0].tobytes() != found[1].tobytes()


def test_sums_along_their_block_are_left_out_but_for_their_trace() -> None:
    """They would set the steps: here they are a thousand times what the next block is made of."""
    block = Basis(mean=np.zeros(12), directions=np.linalg.qr(RNG.normal(size=(12, 3)))[0])
    beside = RNG.normal(size=(12, 3))
    beside -= block.directions @ (block.directions.T @ beside)
    sums = 1000.0 * block.directions + beside
    form = form_of(12, 8)
    coded = form.encode_sums(sums, "key", block)
    assert len(coded) == 8 + len(form.encode_sums(beside, "key"))
    found = form.decode_sums(coded, block)
    assert np.sum(block.directions.reshape(-1) * found) == pytest.approx(3000.0, rel=1e-3)
    error = found - sums.reshape(-1)
    assert np.abs(error).max() < np.abs(beside).max() / 20
    np.testing.assert_array_equal(
        form_of(12, 32).decode_sums(form_of(12, 32).encode_sums(sums, "key", block), block),
        sums.reshape(-1).astype(form_of(12, 32).encode_sums(sums, "key").dtype),
    )


@pytest.mark.parametrize("array", [np.zeros(9), np.zeros(7, np.uint8)])
def test_what_are_no_sums_of_products_is_refused(array: np.ndarray) -> None:
    block = Basis(mean=np.zeros(12), directions=np.eye(12)[:, :3])
    with pytest.raises(RemoteProtocolError, match="expected bytes of a trace"):
        form_of(12, 8).decode_sums(array, block)
    of_others = form_of(12, 8).encode_sums(np.ones((12, 2)), "key")
    with pytest.raises(RemoteProtocolError, match="are 24 values; expected 36"):
        form_of(12, 8).decode_sums(np.concatenate([np.zeros(8, np.uint8), of_others]), block)


@pytest.mark.parametrize("array", [np.zeros(0), np.ones(13), np.full(24, np.nan)])
def test_what_is_no_basis_is_refused(array: np.ndarray) -> None:
    with pytest.raises(RemoteProtocolError, match="a basis has .*expected"):
        form_of(12).decode(array)
    for bits, other in ((8, array), (32, np.zeros(24, np.uint8))):
        with pytest.raises(RemoteProtocolError, match="expected that of basis-bits"):
            form_of(12, bits).decode(other)
    with pytest.raises(RemoteProtocolError, match="coded array|expected multiples"):
        form_of(12, 8).decode(np.frombuffer(b"x" * 31, np.uint8))


def test_clients_of_a_process_decode_a_basis_once_and_none_can_change_it() -> None:
    basis = built(2)
    form, coded = form_of(12, bits=8), form_of(12, bits=8).encode(basis)
    read = form.decode(coded)
    assert form_of(12, bits=8).decode(coded.copy()) is read
    for part in (read.mean, read.directions):
        with pytest.raises(ValueError, match="read-only"):
            part[0] = 1
    other = coded.copy()
    other[0] ^= 1
    assert form.decode(other).mean[0] != read.mean[0]
    of_float = BasisForm(features=12, dtype="float32", bits=8).decode(coded)
    assert of_float.mean.dtype == np.float32
    with pytest.raises(RemoteProtocolError):
        form_of(11, bits=8).decode(coded)
