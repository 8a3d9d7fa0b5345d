"""``retexo plan``: what a training will move, before it is started."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from retexo_fl.cli.options import PANELS, Values, config_command, examples
from retexo_fl.cli.sentences import printable
from retexo_fl.cli.settling import settled
from retexo_fl.cli.tables import figures, show
from retexo_fl.config import PLACE_KEYS, RunConfig
from retexo_fl.units import format_bytes, format_count

_HELP = """Predict what a training will move, before it is started.

Prints boundary nodes and vectors of each client, and the bytes of lazy and of standard training. \
Bytes are dense tensor bytes, each counted once; a run sends fewer (see its report).
"""
_EXAMPLES = examples("retexo plan --data-dir DIR --dataset cora --clients 2 --rounds 100")
_PANELS = {
    panel: kept
    for panel, keys in PANELS.items()
    if (kept := [key for key in keys if key not in PLACE_KEYS | {"engine"}])
}
#: Clients that a terminal shows one by one.
_MOST_SHOWN: Final = 20


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    config_command(app, "plan", _PANELS, help_text=_HELP, epilog=_EXAMPLES)(_plan)


def _plan(
    values: Values,
    *,
    config: Annotated[
        Path | None, typer.Option(help="TOML file of the keys below; options win.", metavar="FILE")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    from retexo_fl.agent.preparation import load_parts
    from retexo_fl.layers.base import layer_class

    chosen = settled(values, config)
    layer_class(chosen.model)
    facts = _facts(chosen, load_parts(chosen))
    if as_json:
        typer.echo(json.dumps(facts, indent=2))
    else:
        _show(chosen, facts)


def _facts(config: RunConfig, parts: list[Any]) -> dict[str, Any]:
    from retexo_fl.graph import BoundaryPlan
    from retexo_fl.training.stage_model import ModelShape
    from retexo_fl.training.volume import TrainingSize, gamma, lazy_volume, standard_volume

    plans = [BoundaryPlan.from_partition(part) for part in parts]
    shape = ModelShape.of(config, inputs=parts[0].num_features, classes=parts[0].num_classes)
    size = TrainingSize(
        clients=len(parts),
        training_clients=sum(1 for p in parts if p.train_mask.any()),
        asked_clients=sum(1 for p in parts if p.train_mask.any() or p.val_mask.any()),
        validation_clients=sum(1 for p in parts if p.val_mask.any()),
        vectors=sum(plan.num_send for plan in plans),
        rounds=(config.rounds,) * config.layers,
    )
    volumes = {"lazy": lazy_volume(shape, size), "standard": standard_volume(shape, size)}
    return {
        "clients": [
            {
                "client": part.client,
                "nodes": part.num_inner,
                "boundary_nodes": part.num_boundary,
                "peers": len(plan.peers),
                "vectors_out": plan.num_send,
            }
            for part, plan in zip(parts, plans, strict=True)
        ],
        "vectors": size.vectors,
        "raw_bytes": {
            name: {
                "boundary": volume.boundary,
                "updates_up": volume.updates_up,
                "weights_down": volume.weights_down,
                "total": volume.total,
            }
            for name, volume in volumes.items()
        },
        "gamma": gamma(shape, size),
    }


def _show(config: RunConfig, facts: dict[str, Any]) -> None:
    rows = facts["clients"]
    clients = figures("client", "nodes", "boundary nodes", "peers", "vectors sent")
    for row in rows[:_MOST_SHOWN]:
        clients.add_row(str(row["client"]), *(format_count(v) for v in list(row.values())[1:]))
    if len(rows) > _MOST_SHOWN:
        clients.add_row(f"... {len(rows) - _MOST_SHOWN} more")
    sums = [sum(row[key] for row in rows) for key in ("nodes", "boundary_nodes", "vectors_out")]
    clients.add_row("all", *map(format_count, sums[:2]), "", format_count(sums[2]), style="bold")
    volumes = figures("raw bytes", "between clients", "updates up", "weights down", "total")
    for name, volume in facts["raw_bytes"].items():
        volumes.add_row(name, *(format_bytes(value) for value in volume.values()))
    show(
        _head(config, facts),
        clients,
        "Boundary nodes belong to peers and have an edge to the client's own: the client\n"
        "receives a vector for each in every exchange.",
        volumes,
        f"lazy       {config.layers} exchanges, one before each layer's {config.rounds} rounds\n"
        f"standard   end to end: exchanges forward and backward in each of {config.rounds} rounds",
        f"gamma {facts['gamma']:.2f}: how many times more standard training moves, counted at the\n"
        "clients, where a vector is sent and received (RETEXO, equation 2).",
    )


def _head(config: RunConfig, facts: dict[str, Any]) -> str:
    how = "" if config.partitions else f", cut by {config.partitioner}"
    model = f"{config.layers}-layer {config.model}"
    clients = len(facts["clients"])
    graph = f"{config.graph_name} over {clients} clients{how}"
    return printable(f"{graph}: {model}, {config.rounds} rounds a layer")
