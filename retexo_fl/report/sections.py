"""The sections of a report that are not curves: headline, bytes, prediction, settings."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from html import escape
from typing import Final

from retexo_fl.ledger import KINDS, Volume
from retexo_fl.report import markup
from retexo_fl.report.bytes_chart import BytesRow, bytes_chart
from retexo_fl.report.network import network_card
from retexo_fl.report.read import RunRecord
from retexo_fl.report.svg import Size, both_sizes
from retexo_fl.run_log.result import ByKind
from retexo_fl.units import (
    UNKNOWN,
    format_bytes,
    format_count,
    format_counted,
    format_duration,
    format_metric,
    format_share,
)

_WIDE: Final = Size(width=1032, height=220)
_PHONE: Final = Size(width=360, height=270)
#: Absent clients that a note names.
_MOST_ABSENT: Final = 10


def header(run: RunRecord) -> str:
    """Return the head of the page: what was trained, how, and how it ended."""
    result = run.result
    dataset = run.named("dataset", run.name)
    engine, seed = run.named("engine"), run.named("seed")
    clients = result.clients if result else run.course.clients
    attempts = result.attempts if result else run.course.attempts
    facts = [
        run.named("model"),
        run.named("algorithm"),
        format_counted(clients, "client") if clients is not None else "",
        f"engine {engine}" if engine else "",
        f"seed {seed}" if seed else "",
        f"{attempts} attempts" if attempts > 1 else "",
    ]
    profile = result.profile if result else run.course.profile
    lines = [" · ".join(fact for fact in facts if fact)]
    made = result.columns if result else run.course.made_columns
    rows = result.basis_rows if result else run.course.chosen_rows
    floor = result.floor if result else run.course.chosen_floor
    lines += [choice.sentence for choice in (profile, made, rows, floor) if choice is not None]
    paragraphs = "".join(f'<p class="facts">{escape(line)}</p>' for line in lines)
    return (
        f"<header><div><h1>{escape(dataset)}</h1>"
        f"{paragraphs}</div>"
        f'<span class="state {"good" if run.state == "finished" else "warn"}">'
        f"{escape(run.state)}</span></header>"
    )


def notes(run: RunRecord) -> str:
    """Return what the reader must know before the numbers; nothing when there is nothing."""
    found = list(run.notes)
    if run.result is None:
        reason = f" ({run.error})" if run.error else ""
        found.insert(
            0,
            f"Run not finished: state {run.state}{reason}. Figures are those of the last event.",
        )
    elif run.error:
        found.insert(0, f"State {run.state}: {run.error}")
    missing = run.result.missing_rows if run.result else 0
    missing = missing or run.course.missing
    if missing:
        found.append(
            f"The stages were trained without {format_counted(missing, 'boundary row')}, missing "
            "when exchanges were closed."
        )
    if run.result and run.result.absences:
        # Clients are absent only where rounds may be closed early.
        found.append(f"Rounds were closed without some clients ({_counted(run.result.absences)}).")
    found.extend(_masked(run))
    found.extend(f"{warning[:1].upper()}{warning[1:]}." for warning in run.course.warnings)
    if run.course.lost:
        spans = ", ".join(
            f"stage {stage}, rounds {first} to {last}" for stage, first, last in run.course.lost
        )
        found.append(
            f"A crash cut off metrics.jsonl: {spans} were trained, and are not shown here."
        )
    if not found:
        return ""
    items = "".join(f"<p>{escape(note)}</p>" for note in found)
    return f'<div class="notes" role="note">{items}</div>'


def _masked(run: RunRecord) -> list[str]:
    """Return a sentence on what the server has seen, where sums were masked."""
    if not _is_masked(run):
        return []
    text = "Sums were masked: the server saw those over whole cohorts, and of no client its own."
    if run.course.summed is not None:
        least, most = run.course.summed
        among = f"{least}" if least == most else f"{least} to {most}"
        text += f" The cohorts of a round's updates had {among} clients in all."
    if run.course.cut:
        text += f" {format_counted(run.course.cut, 'value')} exceeded their steps and were cut."
    return [text]


def _is_masked(run: RunRecord) -> bool:
    return run.config.get("secure-aggregation") == "masked"


def _counted(absences: Mapping[str, int]) -> str:
    """Return the clients that were absent most often, and how often."""
    most = sorted(absences.items(), key=lambda item: (-item[1], int(item[0])))
    shown = [f"client {client}: {rounds}" for client, rounds in most[:_MOST_ABSENT]]
    return ", ".join([*shown, *(["..."] if len(most) > _MOST_ABSENT else [])])


def cards(run: RunRecord) -> str:
    """Return the headline figures."""
    course = run.course
    payload, raw = _volume(run, "payload"), _volume(run, "raw")
    moved = payload.get("total") if payload else course.moved_bytes or 0
    boundary = payload.get("boundary") if payload else None
    share = boundary / moved if boundary is not None and moved else None
    figures = (
        _test(run),
        _validation(run),
        (
            "Bytes moved",
            format_bytes(moved),
            f"payload; raw {format_bytes(raw['total'])}" if raw else "payload",
        ),
        (
            "Boundary bytes",
            format_bytes(boundary),
            f"{format_share(share)} of all" if share is not None else "not known yet",
        ),
        _duration(run),
        # The page's head also says how many clients there are.
        network_card(run) or _clients(run),
    )
    return f'<dl class="cards">{"".join(markup.card(*figure) for figure in figures)}</dl>'


def _test(run: RunRecord) -> tuple[str, str, str]:
    result = run.result
    if result is None or result.metric is None:
        accuracy = result.test_accuracy if result else None
        nodes = sum(row.test for row in result.client_table) if result else 0
        of = f"of {format_counted(nodes, 'node')}" if accuracy is not None else "not evaluated"
        return "Test accuracy", format_share(accuracy), of
    name, value = result.metric.name, result.metric.value
    beside = f"accuracy {format_share(result.test_accuracy)}"
    if (among := result.metric.ranked_among) is not None:
        beside += f"; each node among {among:,.1f} candidates on average"
    return f"Test {name}", format_metric(name, value), beside


def _validation(run: RunRecord) -> tuple[str, str, str]:
    last = next((stage for stage in reversed(run.course.stages) if stage.best), None)
    best = last.best if last else None
    name = run.course.metric
    value = last.value(best) if last and best else None
    where = f"stage {last.index}, round {best.round}" if last and best else "no round yet"
    if run.result:
        # Where lines of the log were lost, the result has them.
        ended = run.result.stages[-1] if run.result.stages else None
        name = ended.metric.name if ended and ended.metric else "accuracy"
        value = ended.metric.value if ended and ended.metric else run.result.val_accuracy
        if ended is not None and not ended.rounds:
            where = "after the last exchange"
        if run.result.floor is not None and run.result.floor.keeps_floor:
            value, where = run.result.floor.floor, "of the ridge regression that is kept"
    return (
        f"Validation {name}",
        format_metric(name, value),
        where if value is not None else "no nodes",
    )


def _duration(run: RunRecord) -> tuple[str, str, str]:
    if run.result is None:
        return "Duration", format_duration(run.course.seconds), "so far"
    seconds = run.result.seconds
    parts = [
        f"{name} {format_share(part / total, digits=0)}"
        for key, name in (("train", "training"), ("exchange", "exchange"))
        if (part := seconds.get(key)) is not None and (total := seconds.get("total"))
    ]
    # Beside a modelled network, time measured here must be labelled as such.
    name = "Duration" if run.result.network is None else "Compute (measured)"
    return name, format_duration(seconds.get("total")), ", ".join(parts)


def _clients(run: RunRecord) -> tuple[str, str, str]:
    if run.result is None:
        return "Clients", format_count(run.course.clients), ""
    nodes = sum(row.nodes for row in run.result.client_table)
    return "Clients", format_count(run.result.clients), format_counted(nodes, "node")


def _volume(run: RunRecord, measure: str) -> ByKind | None:
    if run.result is not None:
        return run.result.volumes[measure]
    return run.ledger.totals()[measure] if run.ledger is not None else None


def kinds_section(run: RunRecord) -> str:
    """Return bytes by kind, and by stage where a ledger was kept."""
    raw, payload, wire = (_volume(run, measure) for measure in ("raw", "payload", "wire"))
    if raw is None or payload is None or wire is None:
        return ""
    kinds = [kind for kind in KINDS if kind in payload]
    rows = [
        BytesRow(label=_name(kind), raw=raw[kind] or 0, payload=payload[kind] or 0)
        for kind in kinds
    ]
    total = payload["total"] or 0
    lines = [
        [
            markup.words(_name(kind)),
            markup.size(payload[kind]),
            markup.share((payload[kind] or 0) / total if total else None),
            markup.size(raw[kind]),
            markup.size(wire[kind]),
        ]
        for kind in (*kinds, "total")
    ]
    columns = ("kind", "payload", "share of payload", "raw", "wire")
    return markup.section(
        "kinds",
        "Bytes by kind",
        markup.paragraph(
            "Raw: tensors as dense numbers. Payload: tensors as encoded by the codec, and messages "
            "without tensors. Wire: with headers, where measured. "
            + ("Masks: their keys. " if "masks" in kinds else "")
            + "The scale is logarithmic."
        ),
        both_sizes(partial(bytes_chart, rows), _WIDE, _PHONE),
        markup.table("Bytes by kind", columns, lines, last_is_total=True),
        _by_stage(run),
    )


def _by_stage(run: RunRecord) -> str:
    if run.ledger is None:
        return ""
    by_place = run.ledger.grouped("layer", "kind")
    accounts, moved_kinds = [account for account, _ in run.ledger.lines()], run.ledger.totals()
    layers = sorted({account.layer for account in accounts})
    kinds = [kind for kind in KINDS if kind in moved_kinds["payload"]]
    made = {account.layer for account in accounts if account.purpose == "structure"}
    steps = {layer: step for step, layer in enumerate(sorted(made), start=1)}
    rows = []
    for layer in layers:
        moved = [by_place.get((layer, kind), Volume()) for kind in kinds]
        rows.append(
            [
                markup.words(_stage_name(layer, steps)),
                *(markup.size(volume.payload) for volume in moved),
                markup.count(sum(volume.messages for volume in moved)),
            ]
        )
    columns = ("payload", *(_name(kind) for kind in kinds), "messages")
    return markup.folded("Payload by stage", markup.table("Payload by stage", columns, rows))


def _stage_name(layer: int, steps: Mapping[int, int]) -> str:
    if layer in steps:
        return f"columns, step {steps[layer]}"
    return f"stage {layer}" if layer >= 0 else "outside stages"


#: Keys of what is counted as it is coded, under raw, too.
_CODED_KEYS: Final = ("update-bits", "weight-bits", "basis-bits")


def _name(kind: str) -> str:
    return kind.replace("_", " ")


def plan_section(run: RunRecord) -> str:
    """Return predicted against measured bytes; nothing when nothing was predicted."""
    result = run.result
    if result is None or result.plan is None:
        return ""
    plan, measured = result.plan, result.volumes["raw"]
    kinds = [kind for kind in (*KINDS, "total") if plan.predicted_raw.get(kind) is not None]
    rows = []
    for kind in kinds:
        expected, found = plan.predicted_raw[kind], measured[kind]
        known = expected and found is not None
        difference = (found or 0) / (expected or 1) - 1 if known else None
        text = UNKNOWN if difference is None else f"{100 * difference:+.2f} %"
        rows.append(
            [
                markup.words(_name(kind)),
                markup.size(expected),
                markup.size(found),
                markup.Cell(text=text, value=difference),
            ]
        )
    return markup.section(
        "plan",
        "Predicted and measured",
        # A run that trained end to end is not to be compared with itself.
        _standard(plan.standard_raw_total, plan.gamma, measured["total"])
        if result.algorithm == "lazy"
        else "",
        _few_bits(run),
        markup.table(
            "Predicted and measured raw bytes",
            ("kind", "predicted raw", "measured raw", "difference"),
            rows,
            last_is_total="total" in kinds,
        ),
    )


def _few_bits(run: RunRecord) -> str:
    """Return why fewer bytes of weights and updates moved than were predicted, if they did."""
    if _is_masked(run):
        how = "as whole numbers under masks"
    elif any(str(run.config.get(key, 32)) != "32" for key in _CODED_KEYS):
        how = "in few bits"
    else:
        return ""
    return markup.paragraph(
        f"Predicted: all values as they are. This run sent updates, weights or its basis {how}, "
        "which count as raw bytes as they were sent."
    )


def _standard(standard: int | None, gamma: float | None, measured: int | None) -> str:
    if standard is None:
        return ""
    text = (
        f"Standard training, with an exchange in every round, would move {format_bytes(standard)}"
    )
    if measured:
        text += f": {standard / measured:.3g} times what this run moved"
    if gamma is not None:
        text += f" (predicted factor gamma {gamma:.3g})"
    return markup.paragraph(text + ".")


def config_section(run: RunRecord) -> str:
    """Return the configuration."""
    rows = [[markup.words(key), markup.words(value)] for key, value in sorted(run.config.items())]
    if not rows:
        return ""
    return markup.section(
        "configuration", "Configuration", markup.table("Configuration", ("key", "value"), rows)
    )


def footer(run: RunRecord) -> str:
    """Return what the run ran on."""
    lines = []
    if run.result is not None:
        found = run.result.hardware.items()
        hardware = {key: str(value) for key, value in found if value is not None}
        machine = [hardware.pop("cpu", "")]
        cores = hardware.pop("cores", "")
        machine += [f"{cores} core{'' if cores == '1' else 's'}"] if cores else []
        machine += [f"{hardware.pop('memory_gib')} GiB"] if "memory_gib" in hardware else []
        machine += [f"{key} {value}" for key, value in hardware.items()]
        versions = [f"{name} {value}" for name, value in run.result.versions.items()]
        lines = [
            " · ".join(versions),
            " · ".join(part for part in machine if part),
            f"job {run.result.job}",
        ]
    lines.append(f"run directory {run.name}")
    return f"<footer>{''.join(f'<p>{escape(line)}</p>' for line in lines if line)}</footer>"
