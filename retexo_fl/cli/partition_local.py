"""``retexo partition local``: a client's part from the client's own tables."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from retexo_fl.cli.help_text import examples, styled
from retexo_fl.cli.options import Decimal, Delimiter, Encoding, Overwrite, UnlabelledValues
from retexo_fl.cli.sentences import tell
from retexo_fl.config import AUTO_FEATURES
from retexo_fl.errors import ConfigurationError
from retexo_fl.units import format_count, format_counted

if TYPE_CHECKING:
    from retexo_fl.dates import Moment
    from retexo_fl.graph.parts.partition import GraphPartition
    from retexo_fl.graph.recipes import FeatureRecipe

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


def _only(name: str, files: list[Path] | None, peers: Path) -> Path | None:
    """Return the one table of several that an option may seem to take."""
    if files and len(files) > 1:
        raise ConfigurationError(
            f"{name}: got {len(files)} tables; expected one, since {peers} has no types of nodes"
        )
    return files[0] if files else None


def add_to(group: typer.Typer) -> None:
    """Register the command."""
    group.command("local", help=styled(_HELP), epilog=_EXAMPLES)(_local)


def _local(  # noqa: PLR0913 - a command's parameters are its options
    *,
    nodes: Annotated[
        list[Path],
        typer.Option(help="The client's own nodes, or again for each type.", metavar="FILE"),
    ],
    edges: Annotated[
        list[Path] | None,
        typer.Option(
            help="Edges between them, or again for each relation; omit if there are none.",
            metavar="FILE",
        ),
    ] = None,
    boundary: Annotated[
        list[Path] | None,
        typer.Option(
            help="Edges to nodes of peers, if there are any; or again for each relation.",
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
            help="Feature recipe that all clients share, for columns as they are "
            "(`retexo features fit`).",
            metavar="FILE",
        ),
    ] = "",
    key_column: Annotated[
        str, typer.Option(help="Column of keys, if not 'key'.", metavar="NAME")
    ] = "",
    label_column: Annotated[
        str, typer.Option(help="Column of labels, if not 'label'.", metavar="NAME")
    ] = "",
    unlabelled_values: UnlabelledValues = "",
    repeated_nodes: Annotated[
        str,
        typer.Option(
            help="Rows of nodes with the key of another row: refuse them, or take the first or "
            "last.",
            metavar="RULE",
        ),
    ] = "refuse",
    source_column: Annotated[
        str, typer.Option(help="Column of sources of edges, if not 'source'.", metavar="NAME")
    ] = "",
    target_column: Annotated[
        str, typer.Option(help="Column of targets of edges, if not 'target'.", metavar="NAME")
    ] = "",
    weight_column: Annotated[
        str,
        typer.Option(
            help="Column of weights of edges and boundary, if not 'weight'.", metavar="NAME"
        ),
    ] = "",
    type_column: Annotated[
        str,
        typer.Option(
            help="Column of types of nodes, and of relations of edges and boundary, if not 'type'; "
            "read where the peers file names types.",
            metavar="NAME",
        ),
    ] = "",
    time_column: Annotated[
        str,
        typer.Option(help="Column of times of edges and boundary, if not 'time'.", metavar="NAME"),
    ] = "",
    node_time_column: Annotated[
        str,
        typer.Option(
            help="Column of times of nodes, for --split time:VAL/TEST, if not 'time'.",
            metavar="NAME",
        ),
    ] = "",
    delimiter: Delimiter = "",
    decimal: Decimal = "",
    encoding: Encoding = "",
    split: Annotated[
        str,
        typer.Option(
            help="by-key:TRAIN/VAL/TEST for nodes without a column split: each labelled node "
            "is assigned by a hash of seed and key, so shares hold on average. Or "
            "time:VAL/TEST, or time:VAL/TEST/END: by when they came.",
            metavar="SPEC",
        ),
    ] = "",
    unlabelled: Annotated[
        bool,
        typer.Option(
            "--unlabelled", help="The nodes have no labels: the part is to be predicted on."
        ),
    ] = False,
    seed: Annotated[
        int, typer.Option(help="Seed of the split; the same for all clients.", min=0, metavar="N")
    ] = 0,
    merge_edges: Annotated[
        str,
        typer.Option(
            help="An edge that is there several times: refuse it, or one edge with the sum, mean "
            "or max of weights and attributes.",
            metavar="RULE",
        ),
    ] = "refuse",
    self_loops: Annotated[
        str,
        typer.Option(help="An edge from a node to itself: refuse or drop it.", metavar="RULE"),
    ] = "refuse",
    unknown_nodes: Annotated[
        str,
        typer.Option(
            help="An edge of an own node that is not in --nodes: refuse or drop it.",
            metavar="RULE",
        ),
    ] = "refuse",
    edges_before: Annotated[
        str,
        typer.Option(
            help="Leave out edges of this time and later: a number, or a date as 2024-03-01; needs "
            "a column time. Three, as 2024-03-01/2024-04-01/2024-05-01: of train, validation and "
            "test nodes.",
            metavar="TIME",
        ),
    ] = "",
    out: Annotated[Path, typer.Option(help="Folder that gets part-INDEX.", metavar="DIR")],
    overwrite: Overwrite = False,
) -> None:
    from retexo_fl.dates import moments_of
    from retexo_fl.graph.labels import LINKS
    from retexo_fl.graph.parts.as_of import joined_cuts
    from retexo_fl.graph.parts.local_part import ClientTables, make_local_part
    from retexo_fl.graph.parts.peers import read_peers
    from retexo_fl.graph.parts.storage import PART, check_new_folder, part_name, write_partition
    from retexo_fl.graph.parts.typed_local import make_typed_part, read_typed_client
    from retexo_fl.graph.sources.edge_rules import EdgeColumns, EdgeRules
    from retexo_fl.graph.sources.tables import (
        NodeColumns,
        read_boundary_table,
        read_edge_table,
        read_node_table,
    )
    from retexo_fl.graph.sources.tables.nodes import words_of
    from retexo_fl.graph.sources.tables.source import TYPE_COLUMN
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
    read = EdgeRules(
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
    chosen: dict[str, Any] = {
        "split": split,
        "seed": seed,
        "merge": merge_edges,
        "self_loops": self_loops,
        "unknown": unknown_nodes,
        "time_column": node_time_column or TIME_COLUMN,
    }
    if type_column and agreed.relations is None:
        raise ConfigurationError(f"type-column: {peers} has no types of nodes; expected it there")

    def made(cut: Moment | None) -> GraphPartition:
        rules = replace(read, before=cut)
        if agreed.relations is not None:
            typed = read_typed_client(
                *(nodes, edges or (), boundary or (), agreed),
                columns=columns,
                rules=rules,
                attributes=times,
                unlabelled=unlabelled,
                column=type_column or TYPE_COLUMN,
            )
            return make_typed_part(typed, agreed, client, **chosen)
        own_nodes, own_edges, to_peers = (
            _only(option, files, peers)
            for option, files in (("nodes", nodes), ("edges", edges), ("boundary", boundary))
        )
        assert own_nodes is not None
        table = read_node_table(
            own_nodes,
            columns,
            num_features=agreed.num_features,
            attributes=times,
            kind=LINKS if unlabelled else agreed.labels,
        )
        tables = ClientTables(
            nodes=table.without_labels(agreed.labels, agreed.num_classes) if unlabelled else table,
            edges=() if own_edges is None else (read_edge_table(own_edges, rules=rules),),
            boundary=() if to_peers is None else (read_boundary_table(to_peers, rules=rules),),
        )
        return make_local_part(tables, agreed, client, **chosen)

    if len(cuts) > 1:
        part = joined_cuts([made(cut) for cut in cuts], [cut.text for cut in cuts])
    else:
        part = made(cuts[0] if cuts else None)
    write_partition(part, folder, overwrite=overwrite)
    cut = part.num_cut_edges
    tell(
        f"part {client} of {part.num_clients}: {format_counted(part.num_inner, 'inner node')}, "
        f"{format_counted(part.num_boundary, 'boundary node')} of "
        f"{format_counted(len(part.peers), 'peer')}, "
        f"{format_counted((len(part.indices) - cut) // 2, 'inner edge')} and {format_count(cut)} "
        f"to peers in {folder}"
    )
