"""Splits: counts, what they depend on, and what is refused."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from retexo_fl.errors import ConfigurationError, DatasetError, PluginError
from retexo_fl.graph import Graph, Split, make_split
from retexo_fl.graph.masks import Masks, published_split
from tests.support.split_contract import SplitContract
from tests.unit.graph.graphs import SMALL_SPLIT, mask, small_graph


def _graph(labels: list[int]) -> Graph:
    count = len(labels)
    return Graph.from_edges(
        np.array([[0], [1]]),
        name="g",
        features=np.ones((count, 1), dtype=np.float32),
        labels=np.array(labels),
    )


def _counts(split: Split) -> tuple[int, int, int]:
    return int(split.train.sum()), int(split.val.sum()), int(split.test.sum())


def _disjoint(split: Split) -> bool:
    return int((split.train.astype(int) + split.val + split.test).max()) == 1


@pytest.mark.parametrize(
    ("shares", "counts"),
    [
        ("0.2/0.1/0.7", (20, 10, 70)),
        ("0.29/0.29/0.29", (29, 29, 29)),  # as binary floats, 0.29 * 100 is below 29
        ("0.5/0.25/0.125", (50, 25, 12)),
    ],
)
def test_unstratified_split_takes_shares_of_the_labelled_nodes(
    shares: str, counts: tuple[int, int, int]
) -> None:
    graph = _graph([0, 1] * 50 + [-1] * 30)
    split = make_split(
        graph, np.zeros(130, dtype=int), split=f"random-unstratified:{shares}", seed=3
    )
    assert _counts(split) == counts
    assert _disjoint(split)
    assert not (split.train | split.val | split.test)[100:].any()


def test_random_split_takes_shares_of_every_class() -> None:
    """Ends stand at the nearest whole numbers: 7 -> 1.4, 2.1, 7; 5 -> 1, 1.5, 5; 100 -> 20, 30."""
    labels = np.random.default_rng(0).permutation([0] * 7 + [1] * 5 + [2] * 100 + [-1] * 9)
    split = make_split(
        _graph(labels.tolist()), np.zeros(121, dtype=int), split="random:0.2/0.1/0.7", seed=0
    )
    assert _disjoint(split)
    found = [
        tuple(int(mask[labels == c].sum()) for mask in split.named().values()) for c in range(3)
    ]
    assert found == [(1, 1, 5), (1, 1, 3), (20, 10, 70)]


def test_one_node_in_a_hundred_is_in_every_use_at_every_seed() -> None:
    graph = _graph([int(node % 100 == 0) for node in range(1000)])
    for seed in range(20):
        split = make_split(graph, np.zeros(1000, dtype=int), split="random:0.5/0.2/0.3", seed=seed)
        counts = [int(graph.labels[mask].sum()) for mask in split.named().values()]
        assert counts == [5, 2, 3]


def test_unstratified_split_draws_what_the_random_one_did_of_old() -> None:
    """The first train nodes of 40, recorded before splits looked at classes."""
    graph = _graph([0, 1] * 20)
    split = make_split(
        graph, np.zeros(40, dtype=int), split="random-unstratified:0.2/0.1/0.7", seed=3
    )
    assert np.flatnonzero(split.train).tolist() == [7, 13, 18, 23, 24, 25, 26, 35]


@pytest.mark.parametrize("kind", ["random", "random-unstratified"])
def test_random_split_depends_on_the_seed_alone(kind: str) -> None:
    graph = _graph([0, 1] * 40)
    one, two = np.zeros(80, dtype=int), np.arange(80) % 4
    first = make_split(graph, one, split=f"{kind}:0.5/0.2/0.3", seed=1)
    again = make_split(graph, two, split=f"{kind}:0.5/0.2/0.3", seed=1)
    other = make_split(graph, one, split=f"{kind}:0.5/0.2/0.3", seed=2)
    np.testing.assert_array_equal(first.train, again.train)
    np.testing.assert_array_equal(first.val, again.val)
    assert (first.train != other.train).any()


def test_per_client_class_split_takes_shares_of_every_class() -> None:
    labels = [0] * 7 + [1] * 5 + [0] * 10 + [-1] * 4
    owners = np.array([0] * 12 + [1] * 14)
    split = make_split(_graph(labels), owners, split="per-client-class:0.2/0.4/0.4", seed=0)
    assert _disjoint(split)
    # Ends at floor(0.2 n), floor(0.6 n), n: 7 -> 1, 3, 3; 5 -> 1, 2, 2; 10 -> 2, 4, 4.
    cells = (slice(0, 7), slice(7, 12), slice(12, 22), slice(22, 26))
    found = [
        _counts(Split(train=split.train[c], val=split.val[c], test=split.test[c])) for c in cells
    ]
    assert found == [(1, 3, 3), (1, 2, 2), (2, 4, 4), (0, 0, 0)]


def test_per_client_class_split_is_shuffled_by_the_seed() -> None:
    graph, owners = _graph([0] * 60), np.zeros(60, dtype=int)
    splits = [
        make_split(graph, owners, split="per-client-class:0.2/0.4/0.4", seed=seed).train
        for seed in (0, 0, 1)
    ]
    np.testing.assert_array_equal(splits[0], splits[1])
    assert (splits[0] != splits[2]).any()


def test_published_split_is_returned_as_it_is() -> None:
    found = make_split(small_graph(), np.zeros(6, dtype=int), split="published", seed=0)
    for name, expected in SMALL_SPLIT.named().items():
        np.testing.assert_array_equal(found.named()[name], expected)


def test_published_split_is_refused_with_the_alternatives() -> None:
    expected = (
        "random:TRAIN/VAL/TEST, random-unstratified:TRAIN/VAL/TEST, "
        "per-client-class:TRAIN/VAL/TEST, time:VAL/TEST, or module:attribute"
    )
    with pytest.raises(ConfigurationError, match=f"^split: .*'g' .*; expected {expected}$"):
        make_split(_graph([0, 1]), np.zeros(2, dtype=int), split="published", seed=0)


def test_published_split_that_overlaps_is_refused() -> None:
    graph = small_graph()
    overlapping = Graph(
        name="g",
        node_keys=graph.node_keys,
        indptr=graph.indptr,
        indices=graph.indices,
        features=graph.features,
        labels=graph.labels,
        num_classes=2,
        train_mask=mask(6, 0),
        val_mask=mask(6, 0),
        test_mask=mask(6, 1),
    )
    with pytest.raises(DatasetError, match="val_mask: row 0 is in another mask too"):
        make_split(overlapping, np.zeros(6, dtype=int), split="published", seed=0)


def _least_hashes(keys: np.ndarray, count: int) -> set[bytes]:
    def place(key: bytes) -> bytes:
        digest = hashlib.blake2b(key, digest_size=8, person=b"retexo val").digest()
        return digest[::-1]

    return {*sorted(keys.tolist(), key=place)[:count]}


@pytest.mark.parametrize("kind", ["classes", "regression"])
def test_train_nodes_of_the_least_hashes_validate_whatever_their_order(kind: str) -> None:
    keys = np.array([f"k{at}".encode() for at in range(30)])
    labels = np.array([0.0] * 13 + [1] * 8 + [2] * 2 + [-1] * 3 + [0] * 4)
    # The nearest whole number to a fifth of each class: of two nodes none.
    expected = _least_hashes(keys[:13], 3) | _least_hashes(keys[13:21], 2)
    if kind == "classes":
        labels = labels.astype(int)
    else:
        labels = np.where(labels < 0, np.nan, np.arange(30))
        expected = _least_hashes(keys[:23], 5)
    for order in (np.arange(30), np.random.default_rng(0).permutation(30)):
        masks = Masks(train=(np.arange(30) < 23)[order])
        found = published_split("g", masks, keys=keys[order], labels=labels[order]).split
        uses = [{*keys[order][mask].tolist()} for mask in found.named().values()]
        # Of nodes that no mask has those test whose labels are known.
        assert uses == [{*keys[:23].tolist()} - expected, expected, {*keys[26:].tolist()}]
    least = published_split("g", Masks(train=np.ones(2)), keys=keys[:2], labels=np.array([0, 1]))
    assert {*keys[:2][least.split.val].tolist()} == _least_hashes(keys[:2], 1)


def test_a_mask_that_all_splits_share_may_stand_there_once() -> None:
    train = np.array([[1, 0, 0], [0, 1, 0], [0, 0, 1], [0, 0, 0]])
    val, test = np.array([[0], [0], [0], [1]]), np.zeros(4)
    masks = Masks(train=train, val=val, test=test)
    labels, keys = np.array([0, 1, 0, 1]), np.array([b"a", b"b", b"c", b"d"])
    for column in (None, 1, 2):
        test[:] = 0
        test[0 if column else 1] = 1
        found = published_split("g", masks, keys=keys, labels=labels, column=column)
        assert found.split.train.tolist() == (train[:, column or 0] == 1).tolist()
        assert found.split.val.tolist() == [False, False, False, True]
        assert found.notes == (() if column else ("column 0 of 3; published:1 is the next",))
    one = Masks(train=train[:, 0], val=val, test=test)
    with pytest.raises(
        ConfigurationError, match="published:1; .*, as the masks of g have 1 column"
    ):
        published_split("g", one, keys=keys, labels=labels, column=1)
    # A use that no node has is no mask, and takes nodes of others.
    split = Split(train=train[:, 0] == 1, val=val[:, 0] == 1, test=np.zeros(4, dtype=bool))
    assert [*Masks.of(split).there()] == ["train_mask", "val_mask"]


@pytest.mark.parametrize(
    "split",
    [
        "randomly",
        "random",
        "random:0.2/0.8",
        "random:0.2/0.2/0.2/0.2",
        "random:0/0.5/0.5",
        "random:-0.1/0.5/0.5",
        "random:0.5/0.4/0.2",
        "random:a/b/c",
        "random:1e999999999/0.1/0.1",
        "random:1e-1/0.1/0.1",
        "random:\u0660.1/0.1/0.1",
        "random:./0.1/0.1",
        "random:0.1//0.1",
        "random:nan/0.1/0.1",
        "random:1/1/1",
        "per-client-class:inf/0.1/0.1",
        "",
    ],
)
def test_make_split_refuses_a_text_by_name(split: str) -> None:
    with pytest.raises(ConfigurationError, match=r"^split: got ") as caught:
        make_split(_graph([0, 1, 0]), np.zeros(3, dtype=int), split=split, seed=0)
    assert repr(split) in str(caught.value)


def test_make_split_refuses_to_leave_a_mask_empty() -> None:
    graph = _graph([0, 1, 0, 1])
    with pytest.raises(ConfigurationError, match="leaves no train nodes of the 4 labelled ones"):
        make_split(graph, np.arange(4), split="per-client-class:0.2/0.4/0.4", seed=0)
    with pytest.raises(ConfigurationError, match="leaves no validation nodes"):
        make_split(graph, np.zeros(4, dtype=int), split="random:0.5/0.1/0.4", seed=0)


def thirds(graph: Graph, assignment: np.ndarray, seed: int) -> Split:
    """Deal the nodes out in turn, beginning with another use for another seed or first client."""
    turn = (np.arange(graph.num_nodes) + seed + assignment[0]) % 3
    labelled = graph.labels >= 0
    train, val, test = (labelled & (turn == use) for use in range(3))
    return Split(train=train, val=val, test=test)


def twice(graph: Graph, assignment: np.ndarray, seed: int) -> Split:
    """Break the contract: the masks are one."""
    found = thirds(graph, assignment, seed)
    return Split(train=found.train, val=found.train, test=found.test)


def unlabelled(graph: Graph, assignment: np.ndarray, seed: int) -> Split:
    """Break the contract: all nodes train."""
    del assignment, seed
    return Split(
        train=np.ones(graph.num_nodes, dtype=bool),
        val=mask(graph.num_nodes, 0),
        test=mask(graph.num_nodes, 1),
    )


def without_test(graph: Graph, assignment: np.ndarray, seed: int) -> Split:
    """Break the contract: a mask is empty."""
    found = thirds(graph, assignment, seed)
    return Split(train=found.train, val=found.val, test=mask(graph.num_nodes))


def of_numbers(graph: Graph, assignment: np.ndarray, seed: int) -> Split:
    """Break the contract: node numbers instead of masks."""
    del graph, assignment, seed
    return Split(train=np.array([0, 1]), val=np.array([2]), test=np.array([3]))


def of_lists(graph: Graph, assignment: np.ndarray, seed: int) -> Split:
    """Break the contract: masks that are lists."""
    found = thirds(graph, assignment, seed)
    return Split(train=found.train.tolist(), val=found.val, test=found.test)


def masks_only(graph: Graph, assignment: np.ndarray, seed: int) -> dict[str, np.ndarray]:
    """Break the contract: no Split."""
    return thirds(graph, assignment, seed).named()


class TestRandom(SplitContract):
    name = "random:0.4/0.3/0.3"


class TestPerClientClass(SplitContract):
    name = "per-client-class:0.4/0.3/0.3"


class TestPlugin(SplitContract):
    name = f"{__name__}:thirds"


def test_make_split_takes_a_plugin() -> None:
    graph = _graph([0, 1, 0, 1, 0, 1, -1])
    found = make_split(graph, np.ones(7, dtype=int), split=f"{__name__}:thirds", seed=1)
    assert found.train.tolist() == [False, True, False, False, True, False, False]
    assert _counts(found) == (2, 2, 2)


@pytest.mark.parametrize(
    ("attribute", "sentence"),
    [
        ("twice", "val_mask: row 2 is in another mask too; expected disjoint masks"),
        ("unlabelled", "train_mask: row 6 is unlabelled; expected labelled nodes only"),
        ("without_test", "test_mask: no node is in it; expected at least one"),
        ("of_numbers", "train_mask: got int64; expected booleans"),
        ("of_lists", "train_mask: got list; expected an array of booleans"),
        ("masks_only", "returned dict; expected a Split"),
    ],
)
def test_plugin_result_is_refused_by_name(attribute: str, sentence: str) -> None:
    graph = _graph([0, 1, 0, 1, 0, 1, -1])
    with pytest.raises(PluginError) as caught:
        make_split(graph, np.zeros(7, dtype=int), split=f"{__name__}:{attribute}", seed=1)
    assert sentence in str(caught.value)
    assert f"{attribute}'" in str(caught.value)


def test_builtin_name_is_no_module_of_a_plugin() -> None:
    with pytest.raises(ConfigurationError, match="expected three shares"):
        make_split(_graph([0, 1]), np.zeros(2, dtype=int), split="random:shares", seed=0)
