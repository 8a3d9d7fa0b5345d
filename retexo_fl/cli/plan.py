"""``retexo plan``: what a training will move, before it is started."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from retexo_fl.api.settling import Asked
from retexo_fl.cli.help_text import examples
from retexo_fl.cli.options import PROFILE_OPTION, AsJson, Values, config_command
from retexo_fl.cli.sentences import printable, tell_json
from retexo_fl.cli.tables import figures, show
from retexo_fl.config import PLACE_KEYS, RunConfig, panels
from retexo_fl.units import UNKNOWN, format_bytes, format_count, format_counted, format_share

if TYPE_CHECKING:
    from rich.table import Table

_HELP = """Predict the traffic of a training before it starts.

Prints the boundary nodes and vectors of each client, the bytes of the vectors with each boundary \
plan and codec, and the bytes of every algorithm with gamma: those bytes over those of lazy \
training. The chosen algorithm comes first. Compares the profiles by bytes, messages and minutes. \
Also estimates the memory of a run, phase by phase. With links, also the network time of a \
deployment on them. With masked sums, also how many clients are in them.
"""
_EXAMPLES = examples(
    "retexo plan --data-dir DIR --dataset cora --clients 2 --rounds 100",
    "retexo plan --model gcn --boundary-plan cover --algorithm standard --json",
    "retexo plan --clients 5 --links rate:13.6mbit/delay:100ms",
)
_PANELS = {
    panel: kept
    for panel, keys in panels().items()
    if (kept := [key for key in keys if key not in PLACE_KEYS | {"engine"}])
}
_MEMORY_NOTE: Final = "Memory is that of `retexo run` with all clients in one process."
#: Columns of a sentence.
_WIDTH: Final = 80
#: Clients that a terminal shows one by one.
_MOST_SHOWN: Final = 20
_KINDS: Final = (
    *("boundary_training", "boundary_evaluation", "updates_up", "weights_down", "total"),
)
_CODECS: Final = ("dense", "lossless", "fixed")
_PLAN_WORDS: Final[Mapping[str, str]] = MappingProxyType(
    {"rows": "rows", "cover": "rows and sums (cover)"}
)


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    config_command(app, "plan", _PANELS, help_text=_HELP, epilog=_EXAMPLES)(_plan)


def _plan(
    values: Values,
    *,
    config: Annotated[
        Path | None, typer.Option(help="TOML file of the keys below; options win.", metavar="FILE")
    ] = None,
    profile: Annotated[str | None, PROFILE_OPTION] = None,
    tolerated: Annotated[
        int,
        typer.Option(
            help="Under masks: number of clients of a cohort that may collude with the server.",
            metavar="N",
            min=0,
        ),
    ] = 0,
    as_json: AsJson = False,
) -> None:
    from retexo_fl.api.planning import planned

    asked = Asked(values=values, file=config, profile=profile)
    chosen, facts, of_run = planned(asked, tolerated=tolerated)
    if as_json:
        tell_json(facts)
    else:
        _show(chosen, facts, of_run.sentence)


def _show(config: RunConfig, facts: dict[str, Any], profile: str) -> None:
    from retexo_fl.methods.forecasts import FORECASTS, forecast_of

    planned = facts["plans"][facts["boundary_plan"]]
    volumes = planned["algorithms"]
    sizes = {"vectors": planned["vectors"], "drawn": planned["sampled_vectors"]}
    show(
        _head(config, facts),
        "\n".join(textwrap.wrap(printable(profile), _WIDTH, break_on_hyphens=False)),
        _client_table(facts["clients"]),
        "Boundary nodes belong to peers and have an edge to the client's own.",
        _vector_table(facts),
        _added_sentence(planned, backward=forecast_of(config).exchanges_in_rounds),
        "The first exchange carries input features, predicted exactly for all codecs.\n"
        "Hidden states take at most their dense bytes.",
        *_profile_lines(facts),
        _volume_table(volumes),
        "\n".join(f"{name:<10} {FORECASTS[name].sentence(config, **sizes)}" for name in volumes),
        "Bytes of dense vectors, each counted once. Gamma: bytes over those of lazy\n"
        "training, counted at the clients: a vector counts as sent and as received.\n"
        "Without evaluation (RETEXO, equation 2).",
        *_masked_lines(facts),
        _memory_table(facts["memory"]),
        _MEMORY_NOTE,
        *_network_lines(facts),
    )


def _profile_lines(facts: dict[str, Any]) -> list[Table | str]:
    if "profiles" not in facts:
        return []
    from retexo_fl.cli.plan_tables import PROFILE_NOTE, profile_table, rows_sentence

    rows = rows_sentence(facts["second_rows"]) if len(facts["clients"]) > 1 else ""
    noise = facts["row_noise"]["text"] if "row_noise" in facts else ""
    told = ["\n".join(textwrap.wrap(noise, _WIDTH, break_on_hyphens=False))] if noise else []
    return [profile_table(facts["profiles"]), PROFILE_NOTE, *filter(None, [rows]), *told]


def _masked_lines(facts: dict[str, Any]) -> list[Table | str]:
    from retexo_fl.cli.plan_tables import (
        MASKED_NOTE,
        cohort_sentences,
        cohort_table,
        features_sentence,
        masked_table,
        members_sentence,
        warning_sentences,
    )

    told = [features_sentence(facts["features"]), *warning_sentences(facts["warnings"])]
    if "masked" not in facts:
        return [*told]
    cohorts = facts["masked"]["cohorts"]
    return [
        masked_table(facts["masked"]),
        MASKED_NOTE,
        *(filter(None, (facts.get("noise", {}).get(name) for name in ("text", "expected")))),
        *told,
        cohort_table(cohorts),
        cohort_sentences(cohorts),
        *filter(None, [members_sentence(facts["masked"])]),
    ]


def _network_lines(facts: dict[str, Any]) -> list[Table | str]:
    if "network" not in facts:
        return []
    from retexo_fl.cli.plan_tables import NETWORK_NOTE, network_table

    return [network_table(facts["network"]), NETWORK_NOTE]


def _memory_table(memory: Mapping[str, Any]) -> Table:
    """Show what each phase takes; the one that takes most is bold."""
    phases = memory["phases"]
    table = figures("phase", "memory, about")
    for phase, size_bytes in phases.items():
        style = "bold" if size_bytes == max(phases.values()) else None
        table.add_row(phase, format_bytes(size_bytes), style=style)
    if memory["disk"]:
        table.add_row("rows on disk, at most", format_bytes(memory["disk"]))
    table.add_row("this process may have", format_bytes(memory["available"]))
    return table


def _head(config: RunConfig, facts: dict[str, Any]) -> str:
    how = "" if config.partitions else f", cut by {config.partitioner}"
    model = f"{config.layers}-layer {config.model}"
    clients = format_counted(len(facts["clients"]), "client")
    rounds = format_counted(config.rounds, "round") if config.has_rounds else "no rounds"
    return printable(f"{config.graph_name} over {clients}{how}: {model}, {rounds}")


def _client_table(rows: list[dict[str, int]]) -> Table:
    table = figures("client", "nodes", "boundary nodes", "peers", "vectors sent")
    for row in rows[:_MOST_SHOWN]:
        table.add_row(str(row["client"]), *(format_count(v) for v in list(row.values())[1:]))
    if len(rows) > _MOST_SHOWN:
        table.add_row(f"... {len(rows) - _MOST_SHOWN} more")
    sums = [sum(row[key] for row in rows) for key in ("nodes", "boundary_nodes", "vectors_out")]
    table.add_row("all", *map(format_count, sums[:2]), "", format_count(sums[2]), style="bold")
    return table


def _vector_table(facts: dict[str, Any]) -> Table:
    """Compare plans and codecs; what is configured is bold and comes first."""
    table = figures("boundary plan", "vectors", "added", "features, dense", "lossless", "fixed")
    chosen = facts["boundary_plan"]
    for kind in sorted(facts["plans"], key=lambda kind: kind != chosen):
        plan = facts["plans"][kind]
        sizes = (format_bytes(plan["first_exchange"][codec]) for codec in _CODECS)
        style = "bold" if kind == chosen else None
        added = format_share(_share_added(plan, "vectors_added"))
        count = format_count(plan["vectors"])
        table.add_row(_PLAN_WORDS[kind], count, added, *sizes, style=style)
    better = facts["better_of_rows_and_sums"]
    if better is not None:
        unknown = [UNKNOWN] * (1 + len(_CODECS))
        table.add_row("rows or sums, pair by pair", format_count(better), *unknown)
    return table


def _share_added(plan: Mapping[str, Any], what: str) -> float:
    return plan[what] / plan["vectors"] if plan["vectors"] else 0.0


def _added_sentence(planned: Mapping[str, Any], *, backward: bool) -> str:
    text = (
        "Added: vectors that agents at udp:// or xdp:// (codec fixed) can sum on\n"
        "arrival; the others are stored one by one."
    )
    if backward:
        share = format_share(_share_added(planned, "gradients_added"))
        text += f"\nOf the gradients that come back: {share}."
    return text


def _volume_table(volumes: Mapping[str, Any]) -> Table:
    table = figures(
        *("algorithm", "exchanged", "to evaluate", "updates up", "weights down", "total", "gamma")
    )
    for place, (name, volume) in enumerate(volumes.items()):
        style = None if place else "bold"
        if volume is None:
            table.add_row(name, *[UNKNOWN] * (len(_KINDS) + 1), style=style)
        else:
            sizes = (format_bytes(volume[kind]) for kind in _KINDS)
            gamma = UNKNOWN if volume["gamma"] is None else f"{volume['gamma']:.2f}"
            table.add_row(name, *sizes, gamma, style=style)
    return table
