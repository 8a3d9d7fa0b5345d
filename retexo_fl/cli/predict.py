"""``retexo predict``: use a trained model, on the parts it was trained on or on others."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from retexo_fl.api.predicting import (
    OF_TABLES,
    POLICIES,
    READING,
    AskedPredictions,
    Inference,
    predict_asked,
)
from retexo_fl.cli.options import Values, config_command, examples
from retexo_fl.cli.sentences import printable, tell
from retexo_fl.errors import ConfigurationError
from retexo_fl.units import format_bytes, format_counted

_HELP = """Predict the nodes of partitioned graphs with the model of a finished run.

Clients exchange vectors once for each layer; then each client writes its predictions to \
predictions-CLIENT.csv beside its part: key, class, and the probability of each class. DIR may \
hold other parts than those of the training, with new nodes and edges. RUN is not changed; modules \
that its configuration names are imported only with --allow-plugins.
"""
_EXAMPLES = examples(
    "retexo predict runs/first --partitions parts",
    "retexo predict runs/first --partitions parts --format npz --out predicted",
    "retexo predict runs/bank --nodes accounts.csv --edges transfers.csv --out predicted",
    "retexo predict runs/march --nodes accounts.csv --edges transfers.csv "
    "--edges-before 2024-04-01 --out april",
)
_PANELS = {
    "Tables instead of parts": ("nodes", "edges", *READING, "edges-before"),
    "Faults and time": POLICIES,
    "Where it runs": ("engine",),
}
_DEFAULTS: Final = dict.fromkeys((*POLICIES, *READING), "as the run has it")


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    config_command(app, "predict", _PANELS, help_text=_HELP, epilog=_EXAMPLES, defaults=_DEFAULTS)(
        _predict
    )


def _predict(  # noqa: PLR0913 - so many options
    values: Values,
    *,
    run: Annotated[Path, typer.Argument(help="Directory of a finished run.", metavar="RUN")],
    partitions: Annotated[
        Path | None,
        typer.Option(help="Folder of parts from `retexo partition make`.", metavar="DIR"),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for the predictions, instead of DIR.", metavar="DIR"),
    ] = None,
    form: Annotated[
        str, typer.Option("--format", help="csv, parquet or npz.", metavar="NAME")
    ] = "csv",
    spreadsheet_safe: Annotated[
        bool,
        typer.Option(
            "--spreadsheet-safe",
            help="In CSV, put ' before keys that a spreadsheet would run: with =, +, - or @ first.",
        ),
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace existing predictions.")
    ] = False,
    allow_plugins: Annotated[
        bool,
        typer.Option(
            "--allow-plugins", help="Import the module:attribute that RUN's configuration names."
        ),
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show no progress.")] = False,
) -> None:
    asked = AskedPredictions(
        run=run,
        values=values,
        partitions=partitions,
        out=out,
        form=_form(form, spreadsheet_safe),
        overwrite=overwrite,
        allow_plugins=allow_plugins,
        quiet=quiet,
    )
    again = partial(_command, values=values, overwrite=overwrite)
    inference, summary = predict_asked(asked, again=again, tell=tell)
    _tell(inference, summary)


def _form(form: str, spreadsheet_safe: bool) -> str:
    from retexo_fl.client.prediction_files import SPREADSHEET_CSV, check_form

    check_form(form)
    if not spreadsheet_safe:
        return form
    if form != "csv":
        raise ConfigurationError(f"spreadsheet-safe: is for csv; got --format {form}")
    return SPREADSHEET_CSV


def _tell(inference: Inference, summary: Mapping[str, Any]) -> None:
    from retexo_fl.client.prediction_files import predictions_name
    from retexo_fl.graph.labels import LINKS, REGRESSION
    from retexo_fl.simulation.prediction_set import SUMMARY_NAME

    payload = summary["bytes"]["payload"]
    nodes = format_counted(summary["nodes"], "node")
    clients = format_counted(summary["clients"], "client")
    ending = Path(predictions_name(0, inference.form)).suffix
    judged = ["validation", "test"] if summary["labelled"]["validation"]["nodes"] else ["test"]
    what = ""
    if inference.model.config.task == LINKS:
        judged, what = [], "the likeliest links of "
    # There are no right answers of numbers.
    counts_right = inference.model.config.task != REGRESSION
    lines = [
        f"predicted       {what}{nodes} of {clients}",
        *(line for use in judged for line in _figures(summary, use, counts_right=counts_right)),
        f"bytes moved     {format_bytes(payload['total'])}, "
        f"of which between clients {format_bytes(payload['boundary'])}",
        f"predictions     {inference.out / f'predictions-*{ending}'}",
        f"summary         {inference.out / SUMMARY_NAME}",
    ]
    if summary["missing_rows"]:
        missing = format_counted(summary["missing_rows"], "vector")
        lines.insert(1, f"missing         {missing} of peers")
    tell("\n".join(lines))


def _figures(summary: Mapping[str, Any], use: str, *, counts_right: bool) -> list[str]:
    """Return how good the predictions of some nodes are: by the run's metric, and by accuracy."""
    labelled, metric = summary["labelled"][use], summary.get("metric")
    of = f"of {format_counted(labelled['nodes'], f'labelled {use} node')}"
    values = {}
    if metric is not None:
        value = metric[use]
        values[printable(metric["name"])] = "undefined" if value is None else f"{value:.4f}"
    if counts_right:
        values["accuracy"] = f"{labelled['right'] / max(1, labelled['nodes']):.4f}"
    if not labelled["nodes"]:
        of, values = f"no labelled {use} nodes", dict.fromkeys(values, "")
    return [f"{f'{use} {name}':<15} {f'{value} {of}'.strip()}" for name, value in values.items()]


def _command(inference: Inference, values: Values, *, overwrite: bool) -> str:
    """Return the command that makes these predictions."""
    from retexo_fl.client.prediction_files import SPREADSHEET_CSV

    words = ["retexo", "predict", str(inference.model.run)]
    if not OF_TABLES & values.keys():
        words += ["--partitions", str(inference.partitions)]
    if inference.out != inference.partitions:
        words += ["--out", str(inference.out)]
    if inference.form == SPREADSHEET_CSV:
        words += ["--spreadsheet-safe"]
    elif inference.form != "csv":
        words += ["--format", inference.form]
    if inference.allow_plugins:
        words.append("--allow-plugins")
    for key, value in values.items():
        words += [f"--{key}", str(value)]
    return shlex.join([*words, "--overwrite"] if overwrite else words)
