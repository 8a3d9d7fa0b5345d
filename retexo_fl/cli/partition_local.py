"""``retexo partition local``: a client's part from the client's own tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from retexo_fl.cli.help_text import examples, styled
from retexo_fl.cli.options import Decimal, Delimiter, Encoding, Overwrite, UnlabelledValues
from retexo_fl.cli.sentences import tell
from retexo_fl.config import AUTO_FEATURES
from retexo_fl.errors import ConfigurationError
from retexo_fl.units import format_count, format_counted

if TYPE_CHECKING:
    from retexo_fl.graph.masks import Split
    from retexo_fl.graph.parts.local_part import ClientTables
    from retexo_fl.graph.parts.peers import Peers
    from retexo_fl.graph.recipes import FeatureRecipe
    from retexo_fl.graph.sources.edge_rules import EdgeRules
    from retexo_fl.graph.sources.tables import NodeColumns
    from retexo_fl.graph.sources.tables.table import NodeTable

_HELP = """Make one client's part from its own tables, without the whole graph.

Tables are .csv, .tsv (also with .gz or .zip), .parquet or .npz files. Columns of nodes: key, \
label, split, and features x0, x1, ... or x; of edges: source, target, and if there are any weight \
and e_*; of the boundary: own, foreign, peer, and the same. With --features, columns of nodes may \
have any names.

Where the peers file names types, --nodes is given again for each type, --edges and --boundary for \
each relation: a file's name is that of its type or relation, or a column type names relations.
"""
_EXAMPLES = examples(
    "retexo partition local --nodes nodes.csv --edges edges.csv --boundary boundary.csv "
    "--peers peers.toml --name hospital-a --out parts",
    "retexo partition local --nodes nodes.csv --edges edges.csv --boundary boundary.csv "
    "--features recipe.toml --peers peers.toml --name hospital-a --out parts",
    "retexo partition local --nodes new.csv --edges edges.csv --boundary boundary.csv "
    "--unlabelled --peers peers.toml --name hospital-a --out new-parts",
)


def _recipe(features: str) -> FeatureRecipe | None:
    from retexo_fl.graph.recipes import read_recipe

    if features == AUTO_FEATURES:
        raise ConfigurationError(
            "features: auto would make another recipe at each client; expected the file that "
            "`retexo features fit` makes of all clients' summaries"
        )
    return read_recipe(Path(features)) if features else None


def _tables_of(  # noqa: PLR0913 - so much is chosen
    files: Mapping[str, list[Path]],
    agreed: Peers,
    columns: NodeColumns,
    *,
    attributes: tuple[str, ...],
    unlabelled: bool,
    drops: bool,
    type_column: str,
    split_of: Callable[[NodeTable], Split],
) -> Callable[[EdgeRules], ClientTables]:
    """Read a client's nodes; return what reads its edges by some rules and joins both.

    Args:
        files: Of nodes, edges and boundary, by the option that names them.
        agreed: What all clients agree on.
        columns: How columns of nodes are named and used.
        attributes: Columns of nodes that are read, too.
        unlabelled: Read no labels.
        drops: Edges of own nodes that are not in the tables are left out.
        type_column: That says of nodes their type, and of edges their relation.
        split_of: The uses of nodes.

    Raises:
        ConfigurationError: There are several tables of one kind, or a column of types, and the
            clients have not agreed on types.
    """
    from retexo_fl.graph.labels import LINKS
    from retexo_fl.graph.parts.local_part import ClientTables
    from retexo_fl.graph.parts.typed_local import joined_tables, read_relations, read_typed_nodes
    from retexo_fl.graph.sources.tables import (
        read_boundary_table,
        read_edge_table,
        read_node_table,
    )
    from retexo_fl.graph.sources.tables.source import TYPE_COLUMN

    if agreed.relations is not None:
        types = type_column or TYPE_COLUMN
        typed = read_typed_nodes(
            files["nodes"],
            agreed,
            columns,
            attributes=attributes,
            unlabelled=unlabelled,
            column=types,
        )
        return lambda rules: joined_tables(
            typed,
            read_relations(
                "edges", files["edges"], partial(read_edge_table, rules=rules, types=types)
            ),
            read_relations(
                "boundary",
                files["boundary"],
                partial(read_boundary_table, rules=rules, types=types),
            ),
            agreed,
            split_of=split_of,
            recipe=columns.recipe,
            drops=drops,
        )
    for option, paths in files.items():
        if len(paths) > 1:
            raise ConfigurationError(
                f"{option}: got {len(paths)} tables; expected one, since {agreed.source} has no "
                "types of nodes"
            )
    if type_column:
        raise ConfigurationError(
            f"type-column: {agreed.source} has no types of nodes; expected it there"
        )
    table = read_node_table(
        files["nodes"][0],
        columns,
        num_features=agreed.num_features,
        attributes=attributes,
        kind=LINKS if unlabelled else agreed.labels,
    )
    if unlabelled:
        table = table.without_labels(agreed.labels, agreed.num_classes)
    own = replace(table, split=split_of(table))
    return lambda rules: ClientTables(
        nodes=own,
        edges=[read_edge_table(path, rules=rules) for path in files["edges"]],
        boundary=[read_boundary_table(path, rules=rules) for path in files["boundary"]],
    )


def add_to(group: typer.Typer) -> None:
    """Register the command."""
    group.command("local", help=styled(_HELP), epilog=_EXAMPLES)(_local)


def _local(  # noqa: PLR0913 - a command's parameters are its options
    *,
    nodes: Annotated[
        list[Path],
        typer.Option(help="The client's own nodes; repeat it for each type.", metavar="FILE"),
    ],
    edges: Annotated[
        list[Path] | None,
        typer.Option(
            help=("Edges between own nodes; repeat it for each relation; omit if there are none."),
            metavar="FILE",
        ),
    ] = None,
    boundary: Annotated[
        list[Path] | None,
        typer.Option(
            help=("Edges to nodes of peers; repeat it for each relation; omit if there are none."),
            metavar="FILE",
        ),
    ] = None,
    peers: Annotated[Path, typer.Option(help="Peers file of all clients (TOML).", metavar="FILE")],
    name: Annotated[
        str, typer.Option(help="This client's name in the peers file.", metavar="NAME")
    ],
    features: Annotated[
        str,
        typer.Option(
            help="Feature recipe shared by all clients (`retexo features fit`).",
            metavar="FILE",
        ),
    ] = "",
    key_column: Annotated[
        str, typer.Option(help="Column of node keys; default 'key'.", metavar="NAME")
    ] = "",
    label_column: Annotated[
        str, typer.Option(help="Column of labels; default 'label'.", metavar="NAME")
    ] = "",
    unlabelled_values: UnlabelledValues = "",
    repeated_nodes: Annotated[
        str,
        typer.Option(
            help=(
                "What to do when two rows of nodes have the same key: refuse, or keep the "
                "first or the last."
            ),
            metavar="RULE",
        ),
    ] = "refuse",
    source_column: Annotated[
        str, typer.Option(help="Column of edge sources; default 'source'.", metavar="NAME")
    ] = "",
    target_column: Annotated[
        str, typer.Option(help="Column of edge targets; default 'target'.", metavar="NAME")
    ] = "",
    weight_column: Annotated[
        str,
        typer.Option(
            help="Column of weights of edges and boundary; default 'weight'.", metavar="NAME"
        ),
    ] = "",
    type_column: Annotated[
        str,
        typer.Option(
            help=(
                "Column of node types, and of relations of edges and boundary; default "
                "'type'. Read if the peers file names types."
            ),
            metavar="NAME",
        ),
    ] = "",
    time_column: Annotated[
        str,
        typer.Option(help="Column of times of edges and boundary; default 'time'.", metavar="NAME"),
    ] = "",
    node_time_column: Annotated[
        str,
        typer.Option(
            help="Column of node times, for --split time:VAL/TEST; default 'time'.",
            metavar="NAME",
        ),
    ] = "",
    delimiter: Delimiter = "",
    decimal: Decimal = "",
    encoding: Encoding = "",
    split: Annotated[
        str,
        typer.Option(
            help=(
                "Split of nodes without a column split. by-key:TRAIN/VAL/TEST: by a hash of "
                "seed and key, so shares hold on average. time:VAL/TEST or time:VAL/TEST/END:"
                " by node time."
            ),
            metavar="SPEC",
        ),
    ] = "",
    unlabelled: Annotated[
        bool,
        typer.Option("--unlabelled", help="The nodes have no labels; the part is for prediction."),
    ] = False,
    seed: Annotated[
        int, typer.Option(help="Seed of the split; the same for all clients.", min=0, metavar="N")
    ] = 0,
    merge_edges: Annotated[
        str,
        typer.Option(
            help=(
                "What to do with repeated edges: refuse, or merge them by the sum, mean or "
                "maximum of weights and attributes."
            ),
            metavar="RULE",
        ),
    ] = "refuse",
    self_loops: Annotated[
        str,
        typer.Option(
            help="What to do with an edge from a node to itself: refuse, or drop it.",
            metavar="RULE",
        ),
    ] = "refuse",
    unknown_nodes: Annotated[
        str,
        typer.Option(
            help=(
                "What to do with an edge of an own node that is not in --nodes: refuse, or drop it."
            ),
            metavar="RULE",
        ),
    ] = "refuse",
    edges_before: Annotated[
        str,
        typer.Option(
            help=(
                "Drop edges from this time on: a number or a date such as 2024-03-01; needs a"
                " column time. Three, as in 2024-03-01/2024-04-01/2024-05-01, are limits for "
                "train, validation and test nodes."
            ),
            metavar="TIME",
        ),
    ] = "",
    out: Annotated[Path, typer.Option(help="Folder that gets part-INDEX.", metavar="DIR")],
    overwrite: Overwrite = False,
) -> None:
    from retexo_fl.dates import moments_of
    from retexo_fl.graph.parts.as_of import joined_cuts
    from retexo_fl.graph.parts.local_part import make_local_part, split_of_table
    from retexo_fl.graph.parts.peers import read_peers
    from retexo_fl.graph.parts.storage import PART, check_new_folder, part_name, write_partition
    from retexo_fl.graph.sources.edge_rules import EdgeColumns, EdgeRules
    from retexo_fl.graph.sources.tables import NodeColumns
    from retexo_fl.graph.sources.tables.nodes import words_of
    from retexo_fl.graph.sources.text_form import TextForm
    from retexo_fl.graph.time_split import TIME_COLUMN, time_columns, time_cuts

    if node_time_column and not time_columns(split, node_time_column):
        raise ConfigurationError("node-time-column: expected --split time:VAL/TEST with it")
    if time_columns(split, node_time_column):
        time_cuts(split)
    if unlabelled and (label_column or split):
        raise ConfigurationError(
            f"{'label-column' if label_column else 'split'}: cannot be given with unlabelled; "
            "expected one of the two"
        )
    form = TextForm.of(delimiter=delimiter, decimal=decimal, encoding=encoding)
    cuts = moments_of(edges_before)
    rules = EdgeRules(
        unknown=unknown_nodes,
        columns=EdgeColumns.of(
            source=source_column,
            target=target_column,
            weight=weight_column,
            time=time_column,
            form=form,
        ),
    )
    agreed = read_peers(peers)
    client = agreed.index_of(name)
    folder = out / part_name(client)
    check_new_folder(folder, PART if overwrite else None)
    recipe = _recipe(features) or agreed.recipe_of_classes
    agreed.check_recipe(recipe)
    columns = NodeColumns(
        key=key_column,
        label=label_column,
        recipe=recipe,
        unlabelled=words_of(unlabelled_values),
        repeated=repeated_nodes,
        form=form,
    )
    times = time_columns(split, node_time_column)
    tables_at = _tables_of(
        {"nodes": nodes, "edges": edges or [], "boundary": boundary or []},
        agreed,
        columns,
        attributes=times,
        unlabelled=unlabelled,
        drops=unknown_nodes == "drop",
        type_column=type_column,
        split_of=lambda table: split_of_table(table, split, seed, node_time_column or TIME_COLUMN),
    )
    parts = [
        make_local_part(
            tables_at(replace(rules, before=cut)),
            agreed,
            client,
            merge=merge_edges,
            self_loops=self_loops,
            unknown=unknown_nodes,
        )
        for cut in cuts or (None,)
    ]
    part = joined_cuts(parts, [cut.text for cut in cuts]) if len(parts) > 1 else parts[0]
    write_partition(part, folder, overwrite=overwrite)
    cut = part.num_cut_edges
    tell(
        f"part {client} of {part.num_clients}: {format_counted(part.num_inner, 'inner node')}, "
        f"{format_counted(part.num_boundary, 'boundary node')} of "
        f"{format_counted(len(part.peers), 'peer')}, "
        f"{format_counted((len(part.indices) - cut) // 2, 'inner edge')} and {format_count(cut)} "
        f"to peers in {folder}"
    )
