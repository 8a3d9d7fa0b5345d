"""Train, validation and test nodes of a whole graph."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Final, Protocol

import numpy as np

from retexo_fl.errors import ConfigurationError, DatasetError, PluginError
from retexo_fl.graph.checks import ArrayChecks
from retexo_fl.graph.graph import Graph
from retexo_fl.graph.masks import Published, Split, published_split
from retexo_fl.graph.seeding import seeded_generator
from retexo_fl.graph.sources.attributes import demand_attributes
from retexo_fl.graph.time_split import TIME_COLUMN, split_by_time, time_columns
from retexo_fl.plugins import is_plugin, load_callable, named_plugin_errors
from retexo_fl.units import counted

#: What a graph's own split is called.
PUBLISHED: Final = "published"
_FORMS: Final = (
    "random:TRAIN/VAL/TEST, random-unstratified:TRAIN/VAL/TEST, per-client-class:TRAIN/VAL/TEST, "
    "time:VAL/TEST, or module:attribute"
)
#: What each draws for; the second is what ``random`` was before it looked at classes.
_DRAWS: Final = {
    "random": "split stratified",
    "random-unstratified": "split random",
    "per-client-class": "split per-client-class",
}
#: No exponent: ``1e999999999`` would be computed exactly too. Nine digits keep counts in 64 bits.
_DECIMAL = re.compile(r"[0-9]{0,3}\.?[0-9]{1,9}")

Shares = tuple[Fraction, Fraction, Fraction]


class SplitFunction(Protocol):
    """What a ``module:attribute`` must name."""

    def __call__(self, graph: Graph, assignment: np.ndarray, seed: int) -> Split:
        """Return disjoint masks of labelled nodes, none empty; the same for the same seed.

        Args:
            graph: The whole graph.
            assignment: [N] int32 client of each node.
            seed: At least 0.
        """
        ...


def make_split(
    graph: Graph,
    assignment: np.ndarray,
    *,
    split: str,
    seed: int,
    time_column: str = TIME_COLUMN,
) -> Split:
    """Choose train, validation and test nodes among the labelled ones.

    Args:
        graph: The whole graph.
        assignment: [N] client of each node; only ``per-client-class`` looks at it.
        split: ``published``: the graph's own, or ``published:COLUMN`` of several
            (:func:`.published_split`). ``random:TRAIN/VAL/TEST``: shares of the labelled
            nodes of each class, which depend on the seed alone, not on the partitioning; of all
            labelled nodes where labels are no classes.
            ``random-unstratified:TRAIN/VAL/TEST``: likewise, whatever the classes are.
            ``per-client-class:TRAIN/VAL/TEST``: the same shares of each class of each client.
            ``time:VAL/TEST`` or ``time:VAL/TEST/END``: by when nodes came
            (:func:`.split_by_time`). ``module:attribute``: a :class:`SplitFunction`.
        seed: At least 0.
        time_column: The attribute of nodes that says when they came.

    Returns:
        Disjoint masks, none of them empty. A share's end is rounded down, of ``random`` to the
        nearest number, so that classes of a few nodes are not all of the last use; shares that sum
        to one leave no node out.

    Raises:
        ConfigurationError: The text is none of these forms, the shares are not in (0, 1] with a
            sum of at most 1, a mask would be empty, or there is no published split.
        PluginError: A plug-in cannot be imported or called, or returns something else.

    Source: OpenFGL 1.1.0's protocol, per client and class. Rounding cumulative shares down fits
    the totals it gives for Cora.
    """
    if split.partition(":")[0] == PUBLISHED:
        return own_split(graph, split).split
    if time_columns(split, time_column):
        return _by_time(graph, split, time_column)
    kind, _, text = split.partition(":")
    if kind not in _DRAWS and is_plugin(split):
        return _of_plugin(graph, assignment, split, seed)
    if kind not in _DRAWS:
        raise ConfigurationError(f"split: got {split!r}; expected {PUBLISHED}, {_FORMS}")
    shares = parse_shares(split, text)
    labelled = np.flatnonzero(graph.labelled)
    if kind == "per-client-class" and not graph.label_kind.are_classes:
        raise ConfigurationError(
            f"split: {split} does not fit the labels of data set {graph.name!r}, which are "
            f"{graph.label_kind.what}; expected random:TRAIN/VAL/TEST"
        )
    generator = seeded_generator(seed, _DRAWS[kind])
    cells = graph.label_kind.strata(graph.labels[labelled])
    if kind == "random-unstratified":
        cells = np.zeros(len(labelled), dtype=np.int64)
    if kind == "per-client-class":
        owners = np.asarray(assignment, dtype=np.int64)[labelled]
        cells = owners * graph.num_classes + cells
    return _split_cells(graph, labelled, cells, shares, generator, to_nearest=kind == "random")


def own_split(graph: Graph, split: str) -> Published:
    """Return the split that a graph brings.

    Args:
        graph: The graph.
        split: ``published``, or ``published:COLUMN``, from 0, of several.

    Raises:
        ConfigurationError: It brings none, or has no such column.
        DatasetError: Its masks are none, or one is empty.
    """
    if not graph.masks.columns:
        raise ConfigurationError(
            f"split: data set {graph.name!r} has no published split; expected {_FORMS}"
        )
    _, colon, column = split.partition(":")
    found = published_split(
        graph.name,
        graph.masks,
        keys=graph.node_keys,
        labels=graph.labels,
        column=int(column) if colon else None,
    )
    for name, mask in found.split.named().items():
        if not mask.any():
            raise DatasetError(
                f"{graph.name}: {name}: no node is in it; expected at least one, or another split, "
                "such as random:0.2/0.1/0.7"
            )
    return found


def _by_time(graph: Graph, split: str, column: str) -> Split:
    demand_attributes(f"data set {graph.name!r}", graph.attributes, [column])
    found = split_by_time(
        graph.attributes[column], graph.labels, split=split, source=graph.name, column=column
    )
    for name, mask in zip(("train", "validation", "test"), found.named().values(), strict=True):
        if not mask.any():
            raise ConfigurationError(
                f"split: {split} leaves no {name} nodes of the "
                f"{counted(int(graph.labelled.sum()), 'labelled one')} of data set {graph.name!r}; "
                "expected at least one"
            )
    return found


def _of_plugin(graph: Graph, assignment: np.ndarray, split: str, seed: int) -> Split:
    function: SplitFunction = load_callable("split", split, "graph", "assignment", "seed")
    with named_plugin_errors(PluginError):
        found = function(graph, assignment, seed)
    where = f"split {split!r}"
    if not isinstance(found, Split):
        raise PluginError(f"{where}: returned {type(found).__name__}; expected a Split")
    checks = ArrayChecks(source=where, error=PluginError)
    for name, mask in found.named().items():
        if not isinstance(mask, np.ndarray):
            checks.fail(name, f"got {type(mask).__name__}; expected an array of booleans")
        if not mask.any():
            checks.fail(name, "no node is in it; expected at least one")
    checks.masks(found.named(), graph.labelled)
    return found


def parse_shares(split: str, text: str) -> Shares:
    """Read ``0.2/0.1/0.7`` exactly: as binary floats, shares of a whole number may fall short.

    Args:
        split: The whole text, for errors.
        text: The shares in it.

    Raises:
        ConfigurationError: The shares are not in (0, 1] with a sum of at most 1.
    """
    expected = "expected three shares above 0 with a sum of at most 1, such as 0.2/0.1/0.7"
    parts = text.split("/")
    if not all(_DECIMAL.fullmatch(part) for part in parts):
        raise ConfigurationError(f"split: got {split!r}; {expected}")
    shares = [Fraction(part) for part in parts]
    if len(shares) != 3 or min(shares) <= 0 or sum(shares) > 1:
        raise ConfigurationError(f"split: got {split!r}; {expected}")
    return shares[0], shares[1], shares[2]


def _split_cells(
    graph: Graph,
    labelled: np.ndarray,
    cells: np.ndarray,
    shares: Shares,
    generator: np.random.Generator,
    *,
    to_nearest: bool,
) -> Split:
    """Shuffle the labelled nodes of each cell and assign its shares."""
    shuffled = generator.permutation(len(labelled))
    order = shuffled[np.argsort(cells[shuffled], kind="stable")]
    _, first, size = np.unique(cells[order], return_index=True, return_counts=True)
    position = np.arange(len(order)) - np.repeat(first, size)
    masks = []
    begin = np.zeros(len(order), dtype=np.int64)
    total = Fraction(0)
    for name, share in zip(("train", "validation", "test"), shares, strict=True):
        total += share
        half = total.denominator if to_nearest else 0
        end = np.repeat((2 * size * total.numerator + half) // (2 * total.denominator), size)
        mask = np.zeros(graph.num_nodes, dtype=bool)
        mask[labelled[order[(position >= begin) & (position < end)]]] = True
        if not mask.any():
            raise ConfigurationError(
                f"split: leaves no {name} nodes of the "
                f"{counted(len(labelled), 'labelled one')} of data set {graph.name!r}; "
                "expected at least one"
            )
        masks.append(mask)
        begin = end
    return Split(train=masks[0], val=masks[1], test=masks[2])
