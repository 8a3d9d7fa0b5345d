"""``published:all`` in a sweep: a run for each split that the graph brings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from retexo_fl.api.settling import OF_PARTS, Asked, settled
from retexo_fl.config import Scalar
from retexo_fl.config.value_forms import ALL_PUBLISHED
from retexo_fl.errors import ConfigurationError

_SPLIT: Final = "split"
#: What says which graph it is, and how it is read; other keys are the runs' own to fail by.
_OF_GRAPH: Final = (OF_PARTS | {"task", "partitions"}) - {_SPLIT, "partitioner"}


def with_each_split(
    runs: Sequence[Mapping[str, Scalar]], graph: object | None
) -> list[Mapping[str, Scalar]]:
    """Put a run for each published split in the place of a run with ``published:all``.

    Each graph is loaded once, to count its splits, and let go.

    Args:
        runs: Keys of each run, and ``profile``.
        graph: What all runs train on, as :func:`retexo_fl.run` takes it; None for what their keys
            name.

    Raises:
        ConfigurationError: A graph has one split, or none.
        InputError: It cannot be read.
    """
    counts: dict[tuple[object, ...], int] = {}
    every: list[Mapping[str, Scalar]] = []
    for keys in runs:
        if keys.get(_SPLIT) != ALL_PUBLISHED:
            every.append(keys)
            continue
        read = {key: value for key, value in keys.items() if key in _OF_GRAPH}
        name = tuple(sorted(read.items()))
        if name not in counts:
            counts[name] = _count(read, graph)
        every += [{**keys, _SPLIT: f"published:{column}"} for column in range(counts[name])]
    return every


def _count(keys: Mapping[str, Scalar], graph: object | None) -> int:
    from retexo_fl.client.preparation import given_graph, load_graph

    config = settled(Asked(values={**keys, _SPLIT: "published"}, graph=graph).of_run())
    found = load_graph(config, quiet=True) if graph is None else given_graph(graph, config)
    count = found.masks.columns
    if count < 2:
        there = "one published split" if count else "no published split"
        expected = "published" if count else "random:TRAIN/VAL/TEST, such as random:0.6/0.2/0.2"
        raise ConfigurationError(
            f"split: data set {found.name!r} has {there}, and {ALL_PUBLISHED} is for several; "
            f"expected {expected}"
        )
    return count
