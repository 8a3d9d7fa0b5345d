"""From a configuration to the parts that its clients own."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
from scipy.sparse import csr_array

from retexo_fl.client.part import check_edges, note_unused_edges
from retexo_fl.config import AUTO_FEATURES, NO_FEATURES, RunConfig
from retexo_fl.config.goals import AUTO
from retexo_fl.config.profiles import GraphFacts
from retexo_fl.config.value_forms import OF_ONE_CLASS
from retexo_fl.dates import Moment, moments_of
from retexo_fl.errors import CheckpointError, ConfigurationError, DatasetError, PartitionError
from retexo_fl.files import several_paths, write_whole
from retexo_fl.graph.graph import Graph
from retexo_fl.graph.labels import LINKS, LabelKind, labels_for
from retexo_fl.graph.masks import Split, published_split
from retexo_fl.graph.partitioners import assign_nodes
from retexo_fl.graph.parts.as_of import joined_cuts
from retexo_fl.graph.parts.cutting import cut_graph
from retexo_fl.graph.parts.partition import GraphPartition
from retexo_fl.graph.parts.storage import find_partitions, open_partition, part_name
from retexo_fl.graph.recipes import (
    RECIPE_NAME,
    FeatureRecipe,
    fit_recipe,
    read_recipe,
)
from retexo_fl.graph.recipes.recipe import named_recipe
from retexo_fl.graph.scale import tell_scale
from retexo_fl.graph.sources.attributes import attribute_names
from retexo_fl.graph.sources.datasets import count_dataset_values, load_dataset
from retexo_fl.graph.sources.edge_rules import EdgeColumns, EdgeRules
from retexo_fl.graph.sources.named.obtain import kept_path
from retexo_fl.graph.sources.named.table import NAMED
from retexo_fl.graph.sources.plugin_graph import GRAPHS, as_graph
from retexo_fl.graph.sources.reading import Reading
from retexo_fl.graph.sources.table_graph import count_table_values, table_reader
from retexo_fl.graph.sources.tables import (
    AnyTable,
    ColumnChoice,
    NodeColumns,
    summarise_table,
    tables_of,
)
from retexo_fl.graph.sources.tables.nodes import words_of
from retexo_fl.graph.sources.tables.opening import found_form
from retexo_fl.graph.sources.tables.source import KEY_COLUMN, LABEL_COLUMN, TYPE_COLUMN
from retexo_fl.graph.sources.text_form import TextForm
from retexo_fl.graph.sources.typed_tables import (
    count_types,
    fit_typed_recipe,
    has_types,
    typed_reader,
)
from retexo_fl.graph.splits import PUBLISHED, make_split, own_split
from retexo_fl.graph.time_split import TIME_COLUMN, time_columns
from retexo_fl.methods.pieces.columns.keys import check_structure
from retexo_fl.progress.steps import Step
from retexo_fl.relations import differing
from retexo_fl.report import write_report
from retexo_fl.training.columns import with_structure
from retexo_fl.training.model_checks import predicted_relation, takes_fixed_rows
from retexo_fl.training.stage_model import ModelShape
from retexo_fl.units import counted, format_count, format_counted

#: How models are called that read types.
_TYPED: Final = "rel-"
#: Names of classes that an error lists.
_MOST_NAMES: Final = 12

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class SettledParts:
    """All parts of a graph, and by which split.

    Attributes:
        config: With the split that it was, and the place of the class that its metric is of.
        parts: By client.
        masks: That these are the graph's own masks, and what was made of them; of three cuts in
            time, which edges who has. Empty without either.
    """

    config: RunConfig
    parts: list[GraphPartition]
    masks: str = ""


def make_parts(
    config: RunConfig, *, graph: object | None = None, quiet: bool = False
) -> list[GraphPartition]:
    """Load the graph that a configuration names, split it, and cut it into parts.

    Args:
        config: Names the graph, and how to cut it.
        graph: Takes the place of the named one: what :func:`.as_graph` takes.
        quiet: Show no progress of a download.

    Raises:
        DatasetError: The graph is unknown or cannot be trained on.
        TableError: Its tables cannot be read, or contradict each other.
        ConfigurationError: It cannot be split as asked.
    """
    return settled_parts(config, graph=graph, quiet=quiet).parts


def settled_parts(
    config: RunConfig, *, graph: object | None = None, quiet: bool = False
) -> SettledParts:
    """Return what :func:`make_parts` does, and by which split."""
    cuts, reading = moments_of(config.edges_before), reading_of(config)
    by_cut = [replace(reading.rules, before=cut) for cut in cuts or (None,)]
    # A download has a bar of its own.
    with Step(f"loading {config.graph_name}", quiet=quiet or _may_download(config)):
        read = _reader(config, graph, reading, quiet=quiet)
        whole = read(by_cut[0])
    if config.type_column and whole.relations is None:
        raise ConfigurationError(
            f"type-column: nothing in {whole.name!r} says types; expected a graph that does, or no "
            "such key"
        )
    if config.label_types and whole.relations is None:
        raise ConfigurationError(
            f"label-types: nodes of {whole.name!r} have no types; expected a graph that has, or no "
            "such key"
        )
    label_kind(config).check_fit(whole.labels, source=f"data set {whole.name!r}")
    tell_scale(whole.name, [whole.features], whole.recipe)
    config, masks = _with_own_split(config, whole)
    with _cutting(whole, config, quiet=quiet):
        assignment, split = _divided(whole, config)
        parts = cut_graph(whole, assignment, split)
        if len(cuts) < 2:
            return SettledParts(config=config, parts=parts, masks=masks)
        later = (cut_graph(read(rules), assignment, split) for rules in by_cut[1:])
        at_cuts = [parts, *later]
    texts = [cut.text for cut in cuts]
    _tell_cuts(texts, at_cuts)
    joined = [joined_cuts(parts, texts) for parts in zip(*at_cuts, strict=True)]
    of_uses = f"train, validation and test nodes have the edges before {', '.join(texts)}"
    return SettledParts(
        config=config, parts=joined, masks="; ".join(filter(None, (masks, of_uses)))
    )


def later_parts(
    config: RunConfig, before: str, *, graph: object | None = None
) -> list[GraphPartition]:
    """Return what :func:`make_parts` does, with the edges before a later point in time.

    Nodes stay with their clients and keep their uses, which follow from the earlier edges.

    Args:
        config: Of the earlier parts.
        before: Takes the place of its ``edges-before``.
        graph: As in :func:`make_parts`.
    """
    reading = reading_of(config)
    read = _reader(config, graph, reading, quiet=True)
    early = read(reading.rules)
    late = read(replace(reading.rules, before=Moment.of(before)))
    config, _ = _with_own_split(config, early)
    return cut_graph(late, *_divided(early, config))


def _tell_cuts(cuts: Sequence[str], parts: Sequence[Sequence[GraphPartition]]) -> None:
    """Say what is there at each of three points in time, and what crosses for it."""
    for use, cut, each in zip(("train", "validation", "test"), cuts, parts, strict=True):
        # Both ends of an edge hold it.
        edges = sum(len(part.indices) for part in each) // 2
        logger.warning(
            "edges-before: %s nodes are read with the %s before %s; rows of %s cross for them",
            *(use, format_counted(edges, "edge"), cut),
            format_counted(sum(part.num_boundary for part in each), "boundary node"),
        )


def _divided(graph: Graph, config: RunConfig) -> tuple[np.ndarray, Split]:
    """Return [N] to which client each node belongs, and what for it is there."""
    assignment = assign_nodes(
        graph, partitioner=config.partitioner, clients=config.clients, seed=config.seed
    )
    return assignment, _node_split(graph, assignment, config)


def _with_own_split(config: RunConfig, graph: Graph) -> tuple[RunConfig, str]:
    """Choose the split that a graph brings where none is chosen; say, and return, what it is."""
    chosen = config.split
    if not config.goal.splits_nodes or not graph.masks.columns:
        return config, ""
    if chosen == AUTO:
        config = replace(config, split=PUBLISHED if graph.masks.columns == 1 else f"{PUBLISHED}:0")
    if config.split.partition(":")[0] != PUBLISHED:
        return config, ""
    found = own_split(graph, config.split)
    notes, masks = list(found.notes), f"split {config.split}: the graph's own masks"
    made = f"{masks} ({'; '.join(notes)})" if notes else masks
    if chosen == AUTO:
        if graph.masks.columns > 1:
            notes.append(f"column 0 of {graph.masks.columns}, {PUBLISHED}:1 is the next")
        drawn = config.goal.split_name(AUTO)
        notes.append(f"no split was chosen, {drawn} would draw another")
    if notes:
        logger.warning("%s: %s, %s (%s)", graph.name, masks, found.counts, "; ".join(notes))
    return config, made


def _may_download(config: RunConfig) -> bool:
    """Return whether a graph may have to be fetched."""
    if config.nodes or config.dataset not in NAMED:
        return False
    here = Path(config.data_dir) / f"{config.dataset}.npz" if config.data_dir else None
    return kept_path(config.dataset) is None and not (here is not None and here.is_file())


def _cutting(graph: Graph, config: RunConfig, *, quiet: bool) -> Step:
    nodes = format_counted(graph.num_nodes, "node")
    parts = format_counted(config.clients, "part")
    return Step(f"cutting {nodes} into {parts} by {config.partitioner}", quiet=quiet)


def given_graph(
    graph: object, config: RunConfig, reading: Reading | None = None, name: str = "graph"
) -> Graph:
    """Return a graph that was handed over as ours.

    Args:
        graph: What :func:`.as_graph` takes.
        config: Says how its edges and columns are read, and what it is cut by.
        reading: How it is read; None to train on it.
        name: What it is called.

    Raises:
        DatasetError: It is nothing of that kind, or cannot be trained on.
    """
    reading = reading_of(config) if reading is None else reading
    attributes = _attributes(config, reading)
    made = as_graph(
        graph,
        name=name,
        attributes=attributes,
        reading=reading,
        columns=lambda nodes: _node_columns(config, attributes, nodes),
    )
    if made is None:
        raise DatasetError(f"graph: got {type(graph).__name__}; expected {GRAPHS}")
    return _as_chosen(made, config)


def _as_chosen(graph: Graph, config: RunConfig) -> Graph:
    """Return a graph without features, where it is to be read so."""
    if config.features == NO_FEATURES and graph.num_features and graph.relations is None:
        # Of a source that has them anyway.
        graph = replace(graph, features=np.empty((graph.num_nodes, 0), np.float32))
    return graph


def label_kind(config: RunConfig) -> LabelKind:
    """Return what labels a run reads."""
    return labels_for(config.task)


def reading_of(config: RunConfig) -> Reading:
    """Return how a graph is read to be trained on."""
    return Reading(
        rules=edge_rules(config),
        labels=label_kind(config),
        label=config.label_column,
        num_features=0 if config.features == NO_FEATURES else None,
        masks=config.split.partition(":")[0] in {AUTO, PUBLISHED},
        types=types_column(config),
        label_types=config.asked_types,
    )


def types_column(config: RunConfig) -> str:
    """Return the column, or attribute, by which nodes and edges have types; empty to read none."""
    if config.type_column:
        return config.type_column
    return TYPE_COLUMN if config.model.startswith(_TYPED) else ""


def make_unlabelled_parts(config: RunConfig, outputs: int) -> list[GraphPartition]:
    """Cut a graph into parts that are predicted, and not trained on; its labels are not read.

    Args:
        config: Names the graph, how to cut it, and the task of the model.
        outputs: Of the model: classes, labels, or one number.

    Raises:
        DatasetError: The graph is unknown.
        TableError: Its tables cannot be read, or contradict each other.
        ConfigurationError: It cannot be cut as asked, or ``outputs`` is not that of the task, or
            of the recipe's classes.
    """
    if config.goal.outputs not in {None, outputs}:
        raise ConfigurationError(
            f"unlabelled: got {outputs}; expected {config.goal.outputs} with task {config.task}"
        )
    with Step(f"loading {config.graph_name}", quiet=_may_download(config)):
        graph = load_graph(
            config,
            quiet=False,
            reading=replace(reading_of(config), labels=LINKS, masks=False, outputs=outputs),
        )
    classes = () if graph.recipe is None else graph.recipe.classes
    if classes and len(classes) != outputs:
        raise ConfigurationError(
            f"unlabelled: got {outputs}; expected {len(classes)}, the classes of the recipe"
        )
    labels = label_kind(config).unlabelled(graph.num_nodes, outputs)
    graph = replace(graph, labels=labels, num_classes=outputs)
    none = np.zeros(graph.num_nodes, dtype=bool)
    with _cutting(graph, config, quiet=False):
        assignment = assign_nodes(
            graph, partitioner=config.partitioner, clients=config.clients, seed=config.seed
        )
        return cut_graph(graph, assignment, Split(train=none, val=none, test=none))


def _node_split(graph: Graph, assignment: np.ndarray, config: RunConfig) -> Split:
    """Split labelled nodes; none where edges are split, which clients do by themselves."""
    if not config.goal.splits_nodes:
        none = np.zeros(graph.num_nodes, dtype=bool)
        return Split(train=none, val=none, test=none)
    return make_split(
        graph,
        assignment,
        split=config.split_name,
        seed=config.seed,
        time_column=config.node_time_column or TIME_COLUMN,
    )


def whole_part(graph: Graph, *, column: int = 0) -> GraphPartition:
    """Return a graph as one part; its labelled nodes are test nodes if it brings no split.

    Args:
        graph: The graph.
        column: Which of several splits that it brings.
    """
    none = np.zeros(graph.num_nodes, dtype=bool)
    split = Split(train=none, val=none, test=graph.labelled)
    if graph.masks.columns:
        try:
            split = published_split(
                graph.name,
                graph.masks,
                keys=graph.node_keys,
                labels=graph.labels,
                column=min(column, graph.masks.columns - 1),
            ).split
        except DatasetError as problem:
            logger.warning("%s; all labelled nodes count as test nodes", problem)
    return cut_graph(graph, none.astype(np.int32), split)[0]


def count_attribute_clients(config: RunConfig, *, graph: object | None = None) -> int | None:
    """Return how many clients a graph has that is cut by an attribute; None if it is not.

    Args:
        config: Names the graph.
        graph: Takes its place, as in :func:`make_parts`.

    Raises:
        DatasetError: The graph is unknown, or has no such attribute.
        TableError: Its table of nodes cannot be read, or has no such column.
    """
    if config.partitions or not (names := attribute_names(config.partitioner)):
        return None
    tables = tables_of(graph)
    if tables is not None:
        return count_table_values(tables[0], names[0])
    if graph is not None:
        return len(np.unique(given_graph(graph, config).attributes[names[0]]))
    if config.nodes:
        paths, form = several_paths(config.nodes), text_form(config)
        typed = types_column(config) and _are_typed(
            config, paths, several_paths(config.edges), reading_of(config)
        )
        if typed or len(paths) > 1:
            return count_types(paths, names[0], form, types_column(config) or TYPE_COLUMN)
        return count_table_values(paths[0], names[0], form)
    with _found_in(config) as data_dir:
        return count_dataset_values(config.dataset, names[0], data_dir=data_dir)


def edge_rules(config: RunConfig) -> EdgeRules:
    """Return how edges are read."""
    return EdgeRules(
        directed=config.edges_are == "directed",
        merge=config.merge_edges,
        self_loops=config.self_loops,
        # Of three, all edges that any node is read with.
        before=cuts[-1] if (cuts := moments_of(config.edges_before)) else None,
        unknown=config.unknown_nodes,
        predicates=tuple(sorted(words_of(config.predicates))),
        columns=EdgeColumns.of(
            source=config.source_column,
            target=config.target_column,
            weight=config.weight_column,
            time=config.time_column,
            form=text_form(config),
        ),
    )


def text_form(config: RunConfig) -> TextForm:
    """Return what is chosen of the form of text tables."""
    return TextForm.of(delimiter=config.delimiter, decimal=config.decimal, encoding=config.encoding)


def _attributes(config: RunConfig, reading: Reading) -> tuple[str, ...]:
    """Return the attributes of nodes that a graph is cut and split by; a prediction splits none."""
    splits = reading.outputs is None and config.goal.splits_nodes
    times = time_columns(config.split, config.node_time_column) if splits else ()
    return tuple(dict.fromkeys((*attribute_names(config.partitioner), *times)))


def load_graph(config: RunConfig, *, quiet: bool, reading: Reading | None = None) -> Graph:
    """Return the graph that a configuration names; ``reading`` of None is to train on it."""
    reading = reading_of(config) if reading is None else reading
    return _reader(config, None, reading, quiet=quiet)(reading.rules)


def _reader(
    config: RunConfig, graph: object | None, reading: Reading, *, quiet: bool
) -> Callable[[EdgeRules], Graph]:
    """Return what reads a graph by some rules of edges; the nodes of tables in files once.

    Args:
        config: Names the graph, and how it is read.
        graph: Takes its place, as in :func:`make_parts`.
        reading: How it is read.
        quiet: Show no progress of a download.
    """
    if graph is not None:
        return lambda rules: given_graph(graph, config, replace(reading, rules=rules))
    attributes = _attributes(config, reading)
    if config.nodes:
        tables, of_edges = several_paths(config.nodes), several_paths(config.edges)
        if _are_typed(config, tables, of_edges, reading):
            columns = _columns_of_several(config, attributes, tables)
            return typed_reader(tables, of_edges, columns, attributes=attributes, reading=reading)
        nodes, edges = tables[0], of_edges[0]
        columns = _node_columns(config, attributes, nodes)
        return table_reader(nodes, edges, columns, attributes=attributes, reading=reading)

    def read(rules: EdgeRules) -> Graph:
        with _found_in(config) as data_dir:
            found = load_dataset(
                config.dataset,
                data_dir=data_dir,
                attributes=attributes,
                reading=replace(reading, rules=rules),
                quiet=quiet,
            )
        return _as_chosen(found, config)

    return read


def _are_typed(
    config: RunConfig, nodes: Sequence[Path], edges: Sequence[Path], reading: Reading
) -> bool:
    """Return whether tables are of types: there are several, or a column says them."""
    if len(nodes) > 1 or len(edges) > 1:
        return True
    if not reading.types:
        return False
    there = has_types(nodes[0], edges[0], reading.types, text_form(config))
    if config.type_column and not there:
        raise ConfigurationError(
            f"type-column: neither {nodes[0]} nor {edges[0]} has a column {config.type_column!r}; "
            "expected it in one of them"
        )
    return there


def _columns_of_several(
    config: RunConfig, attributes: Sequence[str], nodes: Sequence[Path]
) -> NodeColumns:
    """Return how several tables of nodes are read; a recipe that is made of them is made here.

    Raises:
        ConfigurationError: Their features should be left out.
    """
    columns = NodeColumns(
        key=config.key_column,
        label=config.label_column,
        unlabelled=words_of(config.unlabelled_values),
        repeated=config.repeated_nodes,
        form=text_form(config),
    )
    if config.features == AUTO_FEATURES:
        recipe, told = fit_typed_recipe(
            nodes,
            columns,
            label_kind(config),
            attributes,
            label_types=config.asked_types,
            drop=config.dropped_columns,
        )
        for sentence in told:
            logger.warning("features: %s", sentence)
        return replace(columns, recipe=recipe)
    if config.features not in {"", NO_FEATURES}:
        return replace(columns, recipe=read_recipe(Path(config.features)))
    return columns


def _node_columns(config: RunConfig, attributes: Sequence[str], nodes: AnyTable) -> NodeColumns:
    """Return how the table of nodes is read; a recipe that is made of it is made here.

    What the graph is cut by is the same on all nodes of a client, and no feature.
    """
    key, label = config.key_column, config.label_column
    form, unlabelled = text_form(config), words_of(config.unlabelled_values)
    recipe = None
    if config.features == AUTO_FEATURES:
        form = found_form(nodes, form)
        choice = ColumnChoice(
            key=key or KEY_COLUMN,
            label=label or LABEL_COLUMN,
            drop=(*attributes, *config.dropped_columns),
            unlabelled=unlabelled,
            form=form,
        )
        recipe, told = fit_recipe(summarise_table(nodes, choice))
        for sentence in told:
            logger.warning("features: %s", sentence)
    elif config.features and config.features != NO_FEATURES:
        recipe = read_recipe(Path(config.features))
        if recipe.types:
            kinds = ", ".join(kind for kind, _ in recipe.types)
            raise ConfigurationError(
                f"features: {named_recipe(recipe.digest)} is of types {kinds}; expected their "
                "tables of nodes, or the recipe of a single table"
            )
    return NodeColumns(
        key=key,
        label=label,
        recipe=recipe,
        unlabelled=unlabelled,
        repeated=config.repeated_nodes,
        form=form,
    )


def keep_recipe(recipe: FeatureRecipe | None, run_path: Path) -> None:
    """Put the feature recipe of a run's parts, if they have one, into its directory.

    Names of classes that it holds go into the run's report.

    Raises:
        CheckpointError: It could not be written.
    """
    if recipe is None:
        return
    path = run_path / RECIPE_NAME
    try:
        write_whole(path, [recipe.to_toml().encode()])
    except OSError as error:
        raise CheckpointError(f"{path}: could not be written ({error.strerror})") from error
    if recipe.classes:
        # The server, which wrote it, knows no names of classes.
        write_report(run_path)


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


def load_parts(
    config: RunConfig, *, graph: object | None = None, quiet: bool = False
) -> list[GraphPartition]:
    """Return all parts of a configuration: from its folder of parts, or cut from its data set.

    Args:
        config: Names the folder, or the graph.
        graph: Takes the place of the data set, as in :func:`make_parts`.
        quiet: Show no progress of a download.

    Raises:
        PartitionError: A part is missing, damaged or of another partitioning, no part has a train
            node, or the model cannot take its edges.
        ConfigurationError: ``clients`` contradicts the folder.
    """
    return load_settled(config, graph=graph, quiet=quiet).parts


def load_settled(
    config: RunConfig, *, graph: object | None = None, quiet: bool = False
) -> SettledParts:
    """Return what :func:`load_parts` does, and by which split."""
    if config.partitions:
        return check_parts(config, open_parts(Path(config.partitions)))
    return _checked(settled_parts(config, graph=graph, quiet=quiet))


def check_parts(config: RunConfig, parts: list[GraphPartition]) -> SettledParts:
    """Return parts that were cut already, if a configuration can be trained on them.

    Raises:
        PartitionError: As :func:`load_parts`.
        ConfigurationError: As :func:`load_parts`.
    """
    source = config.partitions or "parts"
    if len(parts) != config.clients:
        raise ConfigurationError(
            f"clients: got {config.clients}; expected {len(parts)}, the number of parts in {source}"
        )
    kind = label_kind(config)
    for part in parts:
        kind.check_fit(part.labels, source=f"{source}/{part_name(part.client)}")
    tell_scale(source, [part.features for part in parts], parts[0].recipe)
    if config.goal.splits_nodes and not any(part.train_mask.any() for part in parts):
        raise PartitionError(f"{source}: no part has a train node; expected at least one")
    return _checked(SettledParts(config=config, parts=parts))


def _checked(settled: SettledParts) -> SettledParts:
    """Settle which class the metric is of, and check that the model takes the edges."""
    config = _with_weights(_of_class(settled.config, settled.parts), settled.parts[0])
    parts = [with_structure(part, config) for part in settled.parts]
    if parts[0].is_structural:
        check_structure(config)
    for part in parts:
        check_edges(config.model, part)
    note_unused_edges(config.model, parts)
    _tell_types(parts)
    _note_drawn_weights(config, parts[0])
    return replace(settled, config=config, parts=parts)


def _tell_types(parts: Sequence[GraphPartition]) -> None:
    """Say how many nodes each type has, and how many edges each relation."""
    relations = parts[0].relations
    if relations is None:
        return
    nodes, edges = np.zeros(len(relations.types), int), np.zeros(relations.num_channels, int)
    for part in parts:
        nodes += np.bincount(relations.kinds(part.node_keys), minlength=len(nodes))
        # A node lists the edges that lead to it, so that an edge counts once in each direction.
        assert part.edge_values.weights is not None
        edges += np.count_nonzero(part.edge_values.weights, axis=0)
    types = [
        f"{name} {format_count(int(count))}"
        for name, count in zip(relations.types, nodes, strict=True)
    ]
    ways = []
    for place, one in enumerate(relations.relations):
        count = format_count(int(edges[place]) // (1 + one.symmetric))
        source, target = relations.types[one.source], relations.types[one.target]
        ways.append(f"{one.name} ({source} to {target}) {count}")
    logger.warning("types: %s; relations: %s", ", ".join(types), ", ".join(ways))


def _note_drawn_weights(config: RunConfig, part: GraphPartition) -> None:
    """Say in a line which types of nodes have weights that are not trained, or not shared.

    Raises:
        ConfigurationError: As :func:`.predicted_relation`.
    """
    predicted_relation(config, part.relations)
    if part.relations is None:
        return
    if config.num_bases and config.basis == "none":
        logger.warning(
            "num-bases: not of the first layer, whose relations have plain matrices, since types "
            "have features of other widths"
        )
    shape = ModelShape.of_part(config, part)
    typed = shape.layer_shape(0).typed
    if typed is None or typed.trains_all or shape.passes_sums:
        return
    is_drawn = {*typed.kinds}.difference(typed.with_loss, typed.taught)
    drawn = [typed.relations.types[kind] for kind in typed.kinds if kind in is_drawn]
    if drawn:
        has, more = "labels", " (algorithm standard trains them)"
        if shape.link_head:
            has, more = "edges that are learned", ""
        elif len(typed.with_loss) > 1:
            more = " (algorithm standard trains them; unlabelled-types is for labels of one type)"
        elif takes_fixed_rows(config) and not typed.taught:
            more = " (unlabelled-types trained, or algorithm standard, trains them)"
        logger.warning(
            "model %s: types without %s keep weights of their own as drawn, layer by layer: %s%s",
            *(config.model, has, ", ".join(drawn), more),
        )


def _of_class(config: RunConfig, parts: Sequence[GraphPartition]) -> RunConfig:
    """Return the configuration with the place of the class that a metric of one class names.

    A number below how many there are is a place; of which class is said, where classes have names
    of their own. What is returned stays the same when it is settled again.
    """
    metric, _, asked = config.metric.partition(":")
    names = parts[0].class_names
    if metric not in OF_ONE_CLASS or (asked.isdecimal() and not names):
        return config
    is_place = asked.isdecimal() and int(asked) < len(names)
    if asked in names and not is_place:
        settled = f"{metric}:{names.index(asked)}"
        logger.warning("metric: %s is %s, the place of that class", config.metric, settled)
        return replace(config, metric=settled)
    if not is_place:
        called = ", ".join(map(repr, names[:_MOST_NAMES])) + ", ..." * (len(names) > _MOST_NAMES)
        place = f"the place of one, from 0 to {parts[0].num_classes - 1}"
        if not names or all(map(str.isdecimal, names)):
            expected = f"{place}: {called or 'they have no names'}"
        else:
            expected = f"one of {called}, or {place}"
        raise ConfigurationError(f"metric: {config.metric} is of no class; expected {expected}")
    logger.warning(
        "metric: %s is of the class %r; its number is its place, from 0",
        *(config.metric, names[int(asked)]),
    )
    return config


def _with_weights(config: RunConfig, part: GraphPartition) -> RunConfig:
    """Return the configuration with class weights by place that are given by name; others are 1.

    Raises:
        ConfigurationError: There is no such class, or it is named twice, or no weight is above 0.
    """
    if ":" not in config.class_weights:
        return config
    given = [piece.rpartition(":")[::2] for piece in config.class_weights.split(",")]
    names = part.class_names or tuple(map(str, range(part.num_classes)))
    called = ", ".join(names[:_MOST_NAMES]) + ", ..." * (len(names) > _MOST_NAMES)
    for at, (name, _) in enumerate(given):
        if name not in names or name in dict(given[:at]):
            what = "is named twice" if name in names else "is no class"
            raise ConfigurationError(
                f"class-weights: {name[:60]!r} {what}; expected some of {called}, each once, or a "
                "number for each in their order"
            )
    weights = [dict(given).get(name, "1") for name in names]
    if not any(map(float, weights)):
        raise ConfigurationError("class-weights: all are 0; expected one above 0")
    told = ", ".join(f"{n} {w}" for n, w in zip(names[:_MOST_NAMES], weights, strict=False))
    logger.warning("class-weights: %s%s", told, ", ..." * (len(names) > _MOST_NAMES))
    return replace(config, class_weights=",".join(weights))


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
    """Check that a part is in its owner's place and of the same partitioning as the first.

    What two parts hold on each other's nodes is left to `retexo partition check`; in a training the
    digests of the exchange prove it.
    """
    if told := differing(part.relations, parts[0].relations):
        first = path.with_name("part-0")
        raise PartitionError(f"{path} and {first} have {told}; expected the same")
    if part.partitioning != parts[0].partitioning:
        raise PartitionError(
            f"{path} is of partitioning {part.partitioning[:16]}, {path.with_name('part-0')} of "
            f"{parts[0].partitioning[:16]}; expected parts of one"
        )
    if part.recipe_digest != parts[0].recipe_digest:
        raise PartitionError(
            f"{path} is of {named_recipe(part.recipe_digest)}, {path.with_name('part-0')} of "
            f"{named_recipe(parts[0].recipe_digest)}; expected parts of one feature recipe"
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
