"""``retexo plan``: what a training will move, before it is started."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from retexo_fl.cli.options import Values, config_command
from retexo_fl.config import PLACE_KEYS, RunConfig, key_infos, make_config
from retexo_fl.units import format_bytes, format_count

_HELP = """Predict the bytes of a training: boundary sizes, lazy and standard training, gamma.

Bytes are dense tensor bytes, each counted once; codecs move less (see the report of a run).
"""
_EXAMPLES = "Example: `retexo plan --dataset cora --data-dir DIR --clients 2 --rounds 100`"


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    keys = [key for key in key_infos() if key not in PLACE_KEYS]
    config_command(app, "plan", keys, help_text=_HELP, epilog=_EXAMPLES)(_plan)


def _plan(
    values: Values,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    from retexo_fl.agent.preparation import load_parts, part_paths

    if values.get("partitions") and "clients" not in values:
        values["clients"] = len(part_paths(Path(str(values["partitions"]))))
    config = make_config(values)
    facts = _facts(config, load_parts(config))
    if as_json:
        typer.echo(json.dumps(facts, indent=2))
    else:
        _show(facts)


def _facts(config: RunConfig, parts: list[Any]) -> dict[str, Any]:
    from retexo_fl.graph import BoundaryPlan
    from retexo_fl.training.stage_model import ModelShape
    from retexo_fl.training.volume import TrainingSize, gamma, lazy_volume, standard_volume

    plans = [BoundaryPlan.from_partition(part) for part in parts]
    shape = ModelShape.of(config, inputs=parts[0].num_features, classes=parts[0].num_classes)
    size = TrainingSize(
        clients=len(parts),
        training_clients=sum(1 for p in parts if p.train_mask.any() or p.val_mask.any()),
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


def _show(facts: dict[str, Any]) -> None:
    console = Console()
    clients = _table("client", "nodes", "boundary nodes", "peers", "vectors sent")
    for row in facts["clients"][:20]:
        clients.add_row(*(format_count(value) for value in row.values()))
    console.print(clients)
    if len(facts["clients"]) > 20:
        console.print(f"and {len(facts['clients']) - 20} more clients")
    console.print(f"\none exchange: {format_count(facts['vectors'])} vectors\n")
    volumes = _table("raw bytes", "boundary", "updates up", "weights down", "total")
    for name, volume in facts["raw_bytes"].items():
        volumes.add_row(name, *(format_bytes(value) for value in volume.values()))
    console.print(volumes)
    console.print(
        f"\ngamma {facts['gamma']:.2f}: standard training moves so many times more than lazy "
        "training\n(RETEXO equation 2: counted at the clients, both directions)"
    )


def _table(*names: str) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for place, name in enumerate(names):
        table.add_column(name, justify="right" if place else "left", no_wrap=True)
    return table
