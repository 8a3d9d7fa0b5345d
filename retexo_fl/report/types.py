"""The section that lists types of nodes and the relations between them."""

from __future__ import annotations

from retexo_fl.report import markup
from retexo_fl.report.read import RunRecord


def types_section(run: RunRecord) -> str:
    """Return both tables; nothing of a graph without types."""
    if run.result is None or not run.result.types:
        return ""
    types = [
        [
            markup.words(one.name),
            markup.count(one.features),
            markup.words(one.labels),
            markup.words(one.weights),
        ]
        for one in run.result.types
    ]
    tested = [(one, one.test, one.figures()) for one in run.result.types if one.test is not None]
    names = list(dict.fromkeys(name for *_, figures in tested for name in figures))
    judged = [
        [
            markup.words(one.name),
            markup.count(nodes),
            *(markup.words(f"{figures[n]:.4f}" if n in figures else "undefined") for n in names),
        ]
        for one, nodes, figures in tested
    ]
    relations = [
        [markup.words(cell) for cell in (one.name, one.source, one.target, one.messages)]
        for one in run.result.relations
    ]
    drawn = [one.name for one in run.result.types if one.weights == "as drawn"]
    told = (
        f"Weights that {', '.join(drawn)} have of their own stayed as drawn: layer by layer no "
        "loss leads to them."
    )
    return markup.section(
        "types",
        "Types and relations",
        markup.paragraph(told) if drawn else "",
        markup.table("Types of nodes", ("type", "features", "labels", "weights"), types),
        markup.table("Test by type", ("type", "test nodes", *names), judged) if judged else "",
        markup.table("Relations", ("relation", "from", "to", "messages"), relations),
    )
