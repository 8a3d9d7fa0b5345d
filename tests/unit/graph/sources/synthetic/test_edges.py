"""Edges: as many as asked for, each once, within classes as often as asked for, degrees by law."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, reject
from hypothesis import strategies as st

from retexo_fl.errors import DatasetError
from retexo_fl.graph.sources.synthetic import SyntheticSpec, edges, parse_synthetic
from retexo_fl.graph.sources.synthetic.degrees import PowerLaw
from retexo_fl.graph.sources.synthetic.edges import class_starts, edge_numbers


def _ends(spec: SyntheticSpec) -> np.ndarray:
    numbers = edge_numbers(spec)
    return np.stack((numbers // spec.nodes, numbers % spec.nodes))


def _degrees(spec: SyntheticSpec) -> np.ndarray:
    return np.bincount(_ends(spec).reshape(-1), minlength=spec.nodes)


def _classes(spec: SyntheticSpec) -> np.ndarray:
    return np.repeat(np.arange(spec.classes), np.diff(class_starts(spec)))


def _check(spec: SyntheticSpec) -> None:
    ends = _ends(spec)
    assert ends.shape == (2, spec.edges)
    assert (ends[0] < ends[1]).all()
    assert ends.min() >= 0
    assert ends.max() < spec.nodes
    assert len(np.unique(ends[0] * spec.nodes + ends[1])) == spec.edges
    same = np.count_nonzero(np.equal(*_classes(spec)[ends]))
    assert same == round(spec.edges * spec.homophily)


@given(
    nodes=st.integers(4, 60),
    classes=st.integers(1, 4),
    degree=st.integers(1, 20),
    homophily=st.sampled_from([0.0, 0.3, 0.8, 1.0]),
    power=st.sampled_from([2.05, 2.5, 4.0, 100.0]),
    seed=st.integers(0, 3),
)
def test_any_graph_has_exactly_the_edges_asked_for(
    nodes: int, classes: int, degree: int, homophily: float, power: float, seed: int
) -> None:
    text = (
        f"synthetic:nodes={nodes},classes={classes},degree={degree},homophily={homophily},"
        f"power={power},seed={seed}"
    )
    try:
        spec = parse_synthetic(text)
    except DatasetError:  # more edges than pairs, or a class too small: not this test's matter
        reject()
    _check(spec)


def test_large_graphs_are_drawn_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(edges, "_CHUNK_EDGES", 1000)
    _check(parse_synthetic("synthetic:nodes=3000"))


def test_half_of_all_pairs_can_be_drawn() -> None:
    spec = parse_synthetic("synthetic:nodes=100,classes=2,homophily=0.5,edges=2450")
    _check(spec)


def test_classes_differ_by_at_most_one_node() -> None:
    sizes = np.diff(class_starts(parse_synthetic("synthetic:nodes=1003,classes=7")))
    assert sizes.sum() == 1003
    assert set(sizes) == {143, 144}


@pytest.mark.parametrize("power", [2.2, 2.5, 3.5])
def test_degrees_follow_the_power_law(power: float) -> None:
    degrees = _degrees(parse_synthetic(f"synthetic:nodes=40000,degree=30,power={power}"))
    assert degrees.mean() == 30
    # Far from both ends of the truncated law, the share of nodes above a degree falls as a power.
    low, high = np.quantile(degrees, 0.5), np.quantile(degrees, 0.97)
    above = [np.count_nonzero(degrees > degree) for degree in (low, high)]
    law = PowerLaw.of(parse_synthetic(f"synthetic:nodes=40000,degree=30,power={power}"))
    exact = _survival_exponent(law, low, high)
    measured = np.log(above[0] / above[1]) / np.log(high / low)
    assert measured == pytest.approx(exact, rel=0.07)
    # Without the truncation it would be power - 1.
    assert exact > power - 1


def _survival_exponent(law: PowerLaw, low: float, high: float) -> float:
    """Return the mean slope of the law's survival function between two degrees of mean 30."""
    slope = 1 / (law.power - 1)
    shares = (np.arange(200_000) + 0.5) / 200_000
    weights = (law.cut + (1 - law.cut) * shares) ** -slope
    weights *= 30 / weights.mean()
    above = [np.count_nonzero(weights > degree) for degree in (low, high)]
    return float(np.log(above[0] / above[1]) / np.log(high / low))


def test_a_hub_of_the_row_is_a_hub_of_the_graph() -> None:
    spec = parse_synthetic("synthetic:nodes=7000,degree=20")
    by_rank = _degrees(spec).reshape(7, 1000)
    tenths = by_rank.reshape(7, 10, 100).mean(axis=(0, 2))
    assert (np.diff(tenths) < 0).all()
    assert tenths[0] > 4 * tenths[-1]
    # The structural cut-off: the largest expected degree is the root of the class's ends.
    assert by_rank.max() < 2 * np.sqrt(2 * spec.edges / spec.classes)


def test_a_large_exponent_gives_nearly_equal_degrees() -> None:
    degrees = _degrees(parse_synthetic("synthetic:nodes=5000,degree=40,power=100"))
    assert degrees.std() < 1.2 * np.sqrt(40)


@pytest.mark.parametrize("cut", [1e-15, 1e-6, 0.01, 0.5, 1.0])
@pytest.mark.parametrize("power", [2.05, 2.5, 100.0])
def test_ranks_are_as_likely_as_their_weights(cut: float, power: float) -> None:
    law = PowerLaw(power=power, cut=cut)
    draws = (np.arange(400_000) + 0.5) / 400_000
    counts = np.bincount(law.ranks(draws, 50), minlength=50)
    fine = (np.arange(50 * 2000) + 0.5) / (50 * 2000)
    # The first node's share has a pole at its beginning where there is no cut; it is the rest.
    weights = ((cut + (1 - cut) * fine) ** (-1 / (power - 1))).reshape(50, -1).sum(axis=1)
    expected = weights[1:] / weights[1:].sum()
    np.testing.assert_allclose(counts[1:] / counts[1:].sum(), expected, rtol=0.01)


def test_ranks_stay_in_the_row() -> None:
    for cut in (1e-15, 0.3, 1.0):
        law = PowerLaw(power=2.5, cut=cut)
        for size in (1, 2, 1_000_003):
            ends = law.ranks(np.array([0.0, np.nextafter(1.0, 0.0)]), size)
            assert ends.tolist() == [0, size - 1]
        sizes = np.array([1, 5])
        assert law.ranks(np.array([0.999999, 0.999999]), sizes).tolist() == [0, 4]


def test_the_seed_decides() -> None:
    first, again, other = (
        edge_numbers(parse_synthetic(f"synthetic:nodes=2000,seed={seed}")) for seed in (1, 1, 2)
    )
    np.testing.assert_array_equal(first, again)
    assert np.isin(first, other).mean() < 0.1
