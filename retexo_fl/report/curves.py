"""The sections that show the course of a run: the metric against bytes, each stage's curves."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Final, Literal

from retexo_fl.report import markup
from retexo_fl.report.charts import Hit, Line, LineChart, Mark, line_chart
from retexo_fl.report.scales import fitted_axis, tight_axis
from retexo_fl.report.svg import Size, both_sizes
from retexo_fl.run_log.course import RunCourse, StageCourse
from retexo_fl.run_log.events import ExchangeClosed, RoundClosed
from retexo_fl.units import (
    format_bytes,
    format_count,
    format_counted,
    format_metric,
    format_number,
)

_FULL: Final = Size(width=1032, height=330)
_HALF: Final = Size(width=504, height=230)
_PHONE: Final = Size(width=360, height=260)
_TABLE_ROWS: Final = 60


def accuracy_section(course: RunCourse) -> str:
    """Return the metric against bytes, all stages on one axis, with the table of best rounds."""
    scored = [stage for stage in course.begun if _scored(stage)]
    if not course.begun:
        return ""
    name = course.metric
    heading = f"{name[:1].upper()}{name[1:]} against bytes"
    if not scored:
        rounds = "no round yet" if course.end is None else "no rounds"
        text = f"No round has a validation {name}: there are no validation nodes, or {rounds}."
        return markup.section("accuracy", heading, markup.paragraph(text))
    chart = _accuracy_chart(course, scored)
    return markup.section(
        "accuracy",
        heading,
        markup.paragraph(
            f"Validation {name} after each round. Shaded: the exchange that opens a stage. "
            "Ring: the best round of a stage, whose weights were kept."
        ),
        both_sizes(partial(line_chart, chart), _FULL, _PHONE),
        _best_table(course),
    )


def stages_section(course: RunCourse) -> str:
    """Return the curves of every stage, each with its rounds as a table."""
    return markup.section("stages", "Stages", *(_stage(stage) for stage in course.begun))


def _scored(stage: StageCourse) -> list[tuple[float, float, RoundClosed]]:
    return [
        (point.bytes_payload, value, point)
        for point in stage.points
        if (value := stage.value(point)) is not None
    ]


def _accuracy_chart(course: RunCourse, scored: Sequence[StageCourse]) -> LineChart:
    points = {stage.index: _scored(stage) for stage in scored}
    everything = [item for items in points.values() for item in items]
    return LineChart(
        name="accuracy-chart",
        title=f"Validation {course.metric} against payload bytes moved",
        description=" ".join(_best_sentence(stage) for stage in scored),
        x=tight_axis(0, max(x for x, _, _ in everything), "bytes"),
        y=fitted_axis((y for _, y, _ in everything), _axis(course.metric)),
        x_title="payload moved by all clients",
        lines=[
            Line(label="", tone="val", points=[(x, y) for x, y, _ in items])
            for items in points.values()
        ],
        marks=[
            Mark(x=best.bytes_payload, y=value, label=format_metric(course.metric, value))
            for stage in scored
            if (best := stage.best) is not None and (value := stage.value(best)) is not None
        ],
        bands=[
            (stage.start_bytes, stage.exchange.bytes_payload)
            for stage in course.begun
            if stage.exchange is not None
        ],
        sections=[(stage.start_bytes, f"stage {stage.index}") for stage in course.begun],
        hits=[
            Hit(
                x=x,
                y=y,
                tip=f"stage {index}, round {point.round}: {_shown(course.metric, y)}"
                f" at {format_bytes(x)}",
            )
            for index, items in points.items()
            for x, y, point in items
        ],
    )


def _best_sentence(stage: StageCourse) -> str:
    if stage.best is None:
        return f"Stage {stage.index} has no best round."
    return (
        f"Stage {stage.index} was best in round {stage.best.round}, with a validation "
        f"{stage.metric} of {_shown(stage.metric, stage.value(stage.best))} "
        f"at {format_bytes(stage.best.bytes_payload)}."
    )


def _axis(metric: str) -> Literal["share", "number"]:
    return "share" if metric == "accuracy" else "number"


def _shown(metric: str, value: float | None) -> str:
    return format_metric(metric, value, digits=2)


def _cell(metric: str, value: float | None) -> markup.Cell:
    return markup.Cell(text=_shown(metric, value), value=value)


def _best_table(course: RunCourse) -> str:
    rows = []
    for stage in course.begun:
        best = stage.best
        end = stage.end_bytes
        rows.append(
            [
                markup.words(f"stage {stage.index}"),
                markup.count(stage.trained_rounds),
                markup.count(stage.best_round),
                _cell(stage.metric, stage.value(best) if best else None),
                markup.number(best.val_loss if best else None),
                markup.size(_exchange_bytes(stage)),
                markup.size(None if end is None else end - stage.start_bytes),
            ]
        )
    columns = (
        "",
        "rounds",
        "best round",
        f"validation {course.metric}",
        "validation loss",
        "exchange",
        "whole stage",
    )
    return markup.table("Best round and payload of each stage", columns, rows)


def _exchange_bytes(stage: StageCourse) -> int | None:
    if stage.exchange is None:
        return None
    return max(stage.exchange.bytes_payload - stage.start_bytes, 0)


def _stage(stage: StageCourse) -> str:
    heading = f"<h3>Stage {stage.index}</h3>"
    if not stage.points:
        why = (
            "It has no rounds: rows cross, and nothing is trained"
            if stage.end
            else "No round was finished"
        )
        return f"{heading}{markup.paragraph(f'{_facts(stage)}. {why}.')}"
    if len(stage.points) == 1:  # one point is no curve
        return f"{heading}{markup.paragraph(_facts(stage) + '.')}{_rounds_table(stage)}"
    charts = "".join(
        "<figure>"
        f"<figcaption>{chart.title}</figcaption>"
        f"{both_sizes(partial(line_chart, chart), _HALF, _PHONE)}"
        "</figure>"
        for chart in (_loss_chart(stage), _metric_chart(stage))
        if any(line.points for line in chart.lines)
    )
    return (
        f"{heading}{markup.paragraph(_facts(stage) + '.')}"
        f'<div class="pair">{charts}</div>{_rounds_table(stage)}'
    )


def _facts(stage: StageCourse) -> str:
    done, planned = stage.trained_rounds, format_counted(stage.rounds_planned, "round")
    facts = [format_counted(done, "round") if stage.end else f"{format_count(done)} of {planned}"]
    if stage.best is not None:
        facts.append(f"best in round {stage.best.round}")
    facts += stage.kept
    if stage.exchange is not None:
        facts += _exchange_facts(stage.exchange)
    if stage.cached is not None:
        facts.append(stage.cached.sentence)
    return ", ".join(facts)


def _exchange_facts(exchange: ExchangeClosed) -> list[str]:
    facts = []
    if exchange.vectors is not None:
        facts.append(f"{format_counted(exchange.vectors, 'vector')} exchanged")
    if exchange.missing:
        facts.append(f"{format_count(exchange.missing)} missing")
    if exchange.error_bound is not None:
        facts.append(f"their values rounded by {format_number(exchange.error_bound)} at most")
    return facts


def _loss_chart(stage: StageCourse) -> LineChart:
    lines = [
        Line(label=label, tone=tone, points=[(r, loss) for r, loss in values if loss is not None])
        for label, tone, values in (
            ("training", "train", [(point.round, point.loss) for point in stage.points]),
            ("validation", "val", [(point.round, point.val_loss) for point in stage.points]),
        )
    ]
    hits = [
        Hit(
            x=point.round,
            y=y,
            tip=f"round {point.round}: training loss {format_number(point.loss)}, "
            f"validation loss {format_number(point.val_loss)}",
        )
        for point in stage.points
        if (y := point.val_loss if point.val_loss is not None else point.loss) is not None
    ]
    return _stage_chart(stage, "loss", "Loss", lines, hits)


def _metric_chart(stage: StageCourse) -> LineChart:
    scored = [(point, y) for point in stage.points if (y := stage.value(point)) is not None]
    lines = [Line(label="", tone="val", points=[(point.round, y) for point, y in scored])]
    hits = [
        Hit(x=point.round, y=y, tip=f"round {point.round}: {_shown(stage.metric, y)}")
        for point, y in scored
    ]
    return _stage_chart(stage, "share", f"Validation {stage.metric}", lines, hits)


def _stage_chart(
    stage: StageCourse, kind: str, title: str, lines: Sequence[Line], hits: Sequence[Hit]
) -> LineChart:
    drawn = [line for line in lines if line.points]
    best = next((hit for hit in hits if hit.x == stage.best_round), None)
    label = f"round {stage.best_round}"
    if best is not None and kind == "share":
        label = f"{format_metric(stage.metric, best.y)}, {label}"
    ends = ", ".join(
        f"{line.label or title} from {format_number(line.points[0][1])} "
        f"to {format_number(line.points[-1][1])}"
        for line in drawn
    )
    return LineChart(
        name=f"{kind}-{stage.index}",
        title=title,
        description=f"Stage {stage.index}, {format_counted(len(stage.points), 'round')}: {ends}.",
        x=tight_axis(stage.points[0].round, stage.points[-1].round, "count"),
        y=fitted_axis(
            (y for line in drawn for _, y in line.points),
            _axis(stage.metric) if kind == "share" else "number",
        ),
        x_title="round",
        lines=drawn,
        marks=[] if best is None else [Mark(x=best.x, y=best.y, label=label)],
        hits=hits,
    )


def _rounds_table(stage: StageCourse) -> str:
    every = -(-len(stage.points) // _TABLE_ROWS)
    last = stage.points[-1]
    shown = [
        point
        for index, point in enumerate(stage.points)
        if index % every == 0 or point.round == stage.best_round or point.absent or point is last
    ]
    more = {name: cell for name, (has, cell) in _MORE_CELLS.items() if any(map(has, stage.points))}
    rows = [
        [
            markup.count(point.round),
            markup.number(point.loss),
            markup.number(point.val_loss),
            _cell(stage.metric, stage.value(point)),
            markup.size(point.bytes_payload),
            *(cell(point) for cell in more.values()),
        ]
        for point in shown
    ]
    scored = f"validation {stage.metric}"
    columns = ("round", "training loss", "validation loss", scored, "moved so far", *more)
    summary = "Rounds as a table"
    if every > 1:
        gaps = "those without some clients, " if "without clients" in more else ""
        summary += f" (every {every}th, {gaps}the best and the last)"
    table = markup.table(f"Rounds of stage {stage.index}", columns, rows, sortable=len(rows) > 1)
    return markup.folded(summary, table) if len(rows) > 1 else table


#: Columns that only some runs have: whether a round has something in it, and its cell.
_MORE_CELLS: Final[
    Mapping[str, tuple[Callable[[RoundClosed], object], Callable[[RoundClosed], markup.Cell]]]
] = MappingProxyType(
    {
        "clients in the sum": (
            lambda point: point.summed is not None,
            lambda point: markup.count(point.summed),
        ),
        "values cut": (lambda point: point.cut, lambda point: markup.count(point.cut)),
        "without clients": (
            lambda point: point.absent,
            lambda point: markup.words(", ".join(map(str, point.absent))),
        ),
    }
)
