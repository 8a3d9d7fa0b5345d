"""The text of a synthetic graph: what it may say, and what is said of it otherwise."""

from __future__ import annotations

import pytest

from retexo_fl.errors import DatasetError
from retexo_fl.graph.sources.synthetic import PRESETS, SyntheticSpec, is_synthetic, parse_synthetic


def test_defaults() -> None:
    expected = SyntheticSpec(
        nodes=10_000,
        edges=60_000,
        classes=7,
        features=64,
        homophily=0.8,
        power=2.5,
        words=0,
        signal=1.5,
        seed=0,
    )
    for name in ("synthetic", "synthetic:", "synthetic:degree=12,homophily=.8"):
        assert parse_synthetic(name) == expected


def test_every_parameter_is_taken() -> None:
    name = (
        "synthetic:nodes=300,edges=700,classes=3,features=20,homophily=0.25,power=3,words=4,"
        "signal=0.5,seed=9"
    )
    assert parse_synthetic(name) == SyntheticSpec(
        nodes=300,
        edges=700,
        classes=3,
        features=20,
        homophily=0.25,
        power=3.0,
        words=4,
        signal=0.5,
        seed=9,
    )


def test_words_have_a_signal_of_their_own() -> None:
    assert parse_synthetic("synthetic:words=10").signal == 0.2
    assert parse_synthetic("synthetic:words=10,signal=1").signal == 1.0


def test_presets_have_the_published_counts() -> None:
    reddit, products = (parse_synthetic(f"synthetic:{preset}") for preset in PRESETS)
    assert (reddit.nodes, 2 * reddit.edges) == (232_965, 114_615_892)
    assert (reddit.features, reddit.classes) == (602, 41)
    assert (products.nodes, products.edges) == (2_449_029, 61_859_140)
    assert (products.features, products.classes) == (100, 47)


def test_a_preset_may_be_changed_and_keeps_its_degree() -> None:
    small = parse_synthetic("synthetic:products,nodes=24490,seed=5")
    assert small.edges == round(24490 * 61_859_140 / 2_449_029)
    assert (small.features, small.classes, small.seed) == (100, 47, 5)
    assert parse_synthetic("synthetic:products,degree=10").edges == 12_245_145
    assert parse_synthetic("synthetic:products,edges=77").edges == 77


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("redit", "'redit' is unknown; expected one of reddit, products, or NAME=VALUE with"),
        ("nodez=3", "'nodez=3' is unknown; expected NAME=VALUE with a name of nodes, degree,"),
        ("seed=1,reddit", "'reddit' is unknown; expected NAME=VALUE"),
        ("nodes", "'nodes' is unknown"),
        ("nodes=", "nodes: got ''; expected a whole number from 2 to 100,000,000"),
        ("nodes=1e3", "nodes: got '1e3'; expected a whole number"),
        ("nodes=10.5", "nodes: got '10.5'; expected a whole number"),
        ("nodes=-3", "nodes: got '-3'; expected a whole number"),
        ("nodes=\u0663", "nodes: got '\u0663'; expected a whole number"),
        ("nodes=1", "nodes: got '1'; expected a whole number from 2 to"),
        ("homophily=1.1", "homophily: got '1.1'; expected a number from 0 to 1"),
        ("homophily=nan", "homophily: got 'nan'; expected a number from 0 to 1"),
        ("power=2", "power: got '2'; expected a number from 2.05 to 100"),
        ("seed=1,seed=2", "seed is given twice; expected it once"),
        ("degree=3,edges=3", "got degree and edges; expected one of the two"),
        ("words=5,signal=2", "signal: got 2; expected 0 to 1 with words"),
        ("nodes=12", "classes: got 7; expected at most half of 12 nodes"),
        ("nodes=100,degree=0.001", "degree: gives no edge; expected at least one"),
        ("degree=900", "got 3600000 edges within classes; expected at most 3566073, half"),
        ("classes=1,homophily=0.5", "got 30000 edges between classes; expected at most 0"),
    ],
)
def test_what_is_not_possible_is_named(text: str, expected: str) -> None:
    with pytest.raises(DatasetError) as caught:
        parse_synthetic(f"synthetic:{text}")
    assert str(caught.value).startswith(f"synthetic: {expected}")
    assert len(str(caught.value)) < 250


def test_other_names_are_left_to_others() -> None:
    assert is_synthetic("synthetic")
    assert is_synthetic("synthetic:x")
    assert not is_synthetic("synthetics")
    assert not is_synthetic("synthetic.npz")
