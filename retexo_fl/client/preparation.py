"""From a configuration to the parts that its clients own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from scipy.sparse import csr_array

from retexo_fl.client.edge_fit import check_edges, note_unused_edges
from retexo_fl.config import GraphFacts, RunConfig
from retexo_fl.errors import ConfigurationError, DatasetError, PartitionError
from retexo_fl.graph import (
    EdgeRules,
    Graph,
    GraphPartition,
    assign_nodes,
    cut_graph,
    find_partitions,
    load_dataset,
    make_split,
    open_partition,
)
from retexo_fl.graph.sources.attributes import attribute_names
from retexo_fl.graph.sources.datasets import count_dataset_values
from retexo_fl.graph.sources.table_graph import count_table_values, read_table_graph
from retexo_fl.units import counted


def make_parts(config: RunConfig, *, quiet: bool = False) -> list[GraphPartition]:
    """Load the graph that a configuration names, split it, and cut it into parts.

    Args:
        config: Names the graph, and how to cut it.
        quiet: Show no progress of a download.

    Raises:
        DatasetError: The graph is unknown or cannot be trained on.
        TableError: Its tables cannot be read, or contradict each other.
        ConfigurationError: It cannot be split as asked.
    """
    graph = _load_graph(config, quiet=quiet)
    assignment = assign_nodes(
        graph, partitioner=config.partitioner, clients=config.clients, seed=config.seed
    )
    split = make_split(graph, assignment, split=config.split, seed=config.seed)
    return cut_graph(graph, assignment, split)


def count_attribute_clients(config: RunConfig) -> int | None:
    """Return how many clients a graph has that is cut by an attribute; None if it is not.

    Raises:
        DatasetError: The graph is unknown, or has no such attribute.
        TableError: Its table of nodes cannot be read, or has no such column.
    """
    if config.partitions or not (names := attribute_names(config.partitioner)):
        return None
    if config.nodes:
        return count_table_values(Path(config.nodes), names[0])
    with _found_in(config) as data_dir:
        return count_dataset_values(config.dataset, names[0], data_dir=data_dir)


def _load_graph(config: RunConfig, *, quiet: bool) -> Graph:
    attributes = attribute_names(config.partitioner)
    rules = EdgeRules(
        directed=config.edges_are == "directed",
        merge=config.merge_edges,
        self_loops=config.self_loops,
    )
    if config.nodes:
        tables = (Path(config.nodes), Path(config.edges))
        return read_table_graph(*tables, attributes=attributes, rules=rules)
    with _found_in(config) as data_dir:
        return load_dataset(
            config.dataset, data_dir=data_dir, attributes=attributes, rules=rules, quiet=quiet
        )


@contextmanager
def _found_in(config: RunConfig) -> Iterator[Path | None]:
    """Yield the folder of data sets; where it cannot even be looked into, say so."""
    try:
        yield Path(config.data_dir) if config.data_dir else None
    except OSError as error:
        raise DatasetError(
            f"dataset: {config.dataset[:40]!r} cannot be searched for in {config.data_dir[:200]} "
            f"({error.strerror})"
        ) from error


def part_paths(folder: Path) -> list[Path]:
    """Return the parts below a folder, by client index.

    Raises:
        PartitionError: There is none, or one is missing in the sequence.
    """
    found = find_partitions(folder)
    for client, path in enumerate(found):
        if path.name != f"part-{client}":
            raise PartitionError(
                f"{folder}: part-{client} is missing, there is {path.name}; expected part-0, "
                "part-1, ... without gaps"
            )
    return found


def load_parts(config: RunConfig, *, quiet: bool = False) -> list[GraphPartition]:
    """Return all parts of a configuration: from its folder of parts, or cut from its data set.

    Args:
        config: Names the folder, or the graph.
        quiet: Show no progress of a download.

    Raises:
        PartitionError: A part is missing, damaged or of another partitioning, no part has a train
            node, or the model cannot take its edges.
        ConfigurationError: ``clients`` contradicts the folder.
    """
    parts = _stored_parts(config) if config.partitions else make_parts(config, quiet=quiet)
    for part in parts:
        check_edges(config.model, part)
    note_unused_edges(config.model, parts)
    return parts


def _stored_parts(config: RunConfig) -> list[GraphPartition]:
    folder = Path(config.partitions)
    parts = open_parts(folder)
    if len(parts) != config.clients:
        raise ConfigurationError(
            f"clients: got {config.clients}; expected {len(parts)}, the number of parts in {folder}"
        )
    if not any(part.train_mask.any() for part in parts):
        raise PartitionError(f"{folder}: no part has a train node; expected at least one")
    return parts


def graph_facts(parts: Sequence[GraphPartition]) -> GraphFacts:
    """Count what all parts of a graph have."""
    values = [
        part.features.data if isinstance(part.features, csr_array) else part.features
        for part in parts
    ]
    return GraphFacts(
        nodes=sum(part.num_inner for part in parts),
        edges=sum(len(part.indices) for part in parts) // 2,
        train_nodes=sum(int(part.train_mask.sum()) for part in parts),
        features=parts[0].num_features,
        classes=parts[0].num_classes,
        entries=sum(int(np.count_nonzero(some)) for some in values),
        is_binary=all(bool(np.isin(some, (0, 1)).all()) for some in values),
    )


def open_parts(folder: Path) -> list[GraphPartition]:
    """Return all parts below a folder.

    Raises:
        PartitionError: A part is missing, damaged or of another partitioning.
    """
    paths = part_paths(folder)
    parts = [open_partition(path) for path in paths]
    for path, part in zip(paths, parts, strict=True):
        _check_place(path, part, parts)
    return parts


def _check_place(path: Path, part: GraphPartition, parts: list[GraphPartition]) -> None:
    """Check that a part stands in its owner's place and is of the same partitioning as the first.

    What two parts hold on each other's nodes is left to `retexo partition check`; in a training the
    digests of the exchange prove it.
    """
    if part.partitioning != parts[0].partitioning:
        raise PartitionError(
            f"{path} is of partitioning {part.partitioning[:16]}, {path.with_name('part-0')} of "
            f"{parts[0].partitioning[:16]}; expected parts of one"
        )
    if path.name != f"part-{part.client}":
        raise PartitionError(
            f"{path} is the part of client {part.client}; expected the name part-{part.client}"
        )
    if part.num_clients != len(parts):
        raise PartitionError(
            f"{path.parent}: holds {counted(len(parts), 'part')} of "
            f"{part.num_clients}; expected all of them"
        )
