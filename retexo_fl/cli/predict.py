"""``retexo predict``: use a trained model, on the parts it was trained on or on others."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from retexo_fl.api.predicted_graph import OF_GRAPH, READING
from retexo_fl.api.predicting import (
    POLICIES,
    AskedPredictions,
    Inference,
    config_in_place,
    predict_asked,
)
from retexo_fl.api.training import named_end
from retexo_fl.cli.help_text import examples
from retexo_fl.cli.options import AsJson, RayAddress, Values, config_command
from retexo_fl.cli.sentences import complain, printable, tell, tell_json
from retexo_fl.cli.superlink import (
    DEPLOYMENT,
    Address,
    Insecure,
    RootCertificates,
    deployed_values,
    deployment_address,
)
from retexo_fl.config.goals import Goal
from retexo_fl.errors import ConfigurationError
from retexo_fl.simulation.ray_cluster import ray_address_of
from retexo_fl.units import format_bytes, format_counted

_HELP = """Predict the nodes of partitioned graphs with the model of a finished run.

Clients exchange vectors once for each layer; then each client writes its predictions to \
predictions-CLIENT.csv beside its part: key, class, and the probability of each class. DIR may \
hold other parts than those of the training, with new nodes and edges. With --superlink agents \
predict on their own parts and keep the files, where their owners let them; RUN/predictions gets \
counts. Else RUN is not changed. Modules that its configuration names are imported only with \
--allow-plugins.
"""
_EXAMPLES = examples(
    "retexo predict runs/first --partitions parts",
    "retexo predict runs/first --partitions parts --format npz --out predicted",
    "retexo predict runs/bank --nodes accounts.csv --edges transfers.csv --out predicted",
    "retexo predict runs/march --nodes accounts.csv --edges transfers.csv "
    "--edges-before 2024-04-01 --out april",
    "retexo predict runs/first --superlink 203.0.113.10:8000 --root-certificates ca.crt",
)
_PANELS = {
    "A whole graph instead of parts": (
        *("nodes", "edges", "dataset", "data-dir", *READING, "edges-before"),
    ),
    "Faults and time": POLICIES,
    "Where it runs": ("engine",),
}
_DEFAULTS: Final = {
    **dict.fromkeys((*POLICIES, *READING), "as the run has it"),
    "dataset": "none",
}


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
            help=(
                "In CSV, put ' before keys that begin with =, +, - or @, which a spreadsheet "
                "would execute."
            ),
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
    as_json: AsJson = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show no progress.")] = False,
    ray_address: RayAddress = None,
    superlink: Annotated[
        str | None,
        typer.Option(
            help="Let the clients of this SuperLink predict on their own parts.",
            metavar="HOST:PORT",
            rich_help_panel=DEPLOYMENT,
        ),
    ] = None,
    root_certificates: RootCertificates = None,
    insecure: Insecure = False,
    clients: Annotated[
        int,
        typer.Option(
            help="Number of clients; default as in RUN.",
            min=0,
            metavar="N",
            show_default=False,
            rich_help_panel=DEPLOYMENT,
        ),
    ] = 0,
    secure_aggregation: Annotated[
        str,
        typer.Option(
            "--secure-aggregation",
            help=(
                "Whether the server gets counts over cohorts only (masked; at least 3 "
                "clients), or each client's (none); default as in RUN."
            ),
            metavar="masked|none",
            show_default=False,
            rich_help_panel=DEPLOYMENT,
        ),
    ] = "",
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
        ray_address=ray_address,
    )
    address = deployment_address(superlink, root_certificates, insecure=insecure)
    if address is not None:
        if secure_aggregation:
            asked = replace(asked, values={**values, "secure-aggregation": secure_aggregation})
        _predict_in_place(asked, address, clients, as_json=as_json)
        return
    for name, given in (("clients", clients), ("secure-aggregation", secure_aggregation)):
        if given:
            raise ConfigurationError(f"{name}: expected only with --superlink HOST:PORT")
    from retexo_fl.simulation.prediction_set import SUMMARY_NAME

    again = partial(_command, values=values, overwrite=overwrite)
    inference, summary = predict_asked(asked, again=again, tell=complain if as_json else tell)
    if as_json:
        written = json.loads((inference.out / SUMMARY_NAME).read_bytes())
        tell_json({"folder": str(inference.out), "summary": written})
        return
    places = (
        f"predictions     {inference.out / f'predictions-*{_ending(asked.form)}'}",
        f"summary         {inference.out / SUMMARY_NAME}",
    )
    _tell(inference.model.config.goal, summary, places)


def _predict_in_place(
    asked: AskedPredictions, address: Address, clients: int, *, as_json: bool
) -> None:
    """Have clients predict on their own parts, and say how that went."""
    ray_address_of(asked.ray_address, "deployment")
    given = {*(() if asked.partitions is None else ("partitions",)), *OF_GRAPH & {*asked.values}}
    if given:
        raise ConfigurationError(
            f"{min(given)}: cannot be given with superlink; clients predict on their own parts"
        )
    from retexo_fl.cli.deployed_predict import predict_deployed
    from retexo_fl.federation.prediction_in_place import InPlaceTask
    from retexo_fl.federation.trained_model import read_trained_model

    model = read_trained_model(asked.run, allow_plugins=asked.allow_plugins)
    config = config_in_place(deployed_values(dict(asked.values)), model, clients)
    place = asked.run / "predictions" if asked.out is None else asked.out
    task = InPlaceTask(
        run=str(asked.run.absolute()),
        folder=str(place.absolute()),
        form=asked.form,
        overwrite=asked.overwrite,
    )
    words = _options(
        dict(asked.values),
        asked.out,
        asked.form,
        allow_plugins=asked.allow_plugins,
        overwrite=asked.overwrite,
    )
    command = f"retexo predict {shlex.join([str(asked.run), *words])} {address.options()}"
    command += f" --clients {clients}" if clients else ""
    with named_end(lambda: f"start again with: {command}"):
        path, summary = predict_deployed(
            config,
            task,
            address=address,
            quiet=asked.quiet,
            tell=complain if as_json else tell,
        )
    if as_json:
        tell_json({"folder": str(path.parent), "summary": summary})
        return
    if summary is None:
        tell(f"summary         {path} where the SuperLink runs")
        return
    kept = f"{summary['set']}/predictions-CLIENT{_ending(summary['format'])}"
    places = (
        f"predictions     {kept} below each client's own folder",
        f"summary         {path}",
    )
    _tell(config.goal, summary, places)


def _form(form: str, spreadsheet_safe: bool) -> str:
    from retexo_fl.methods.predict.files import SPREADSHEET_CSV, check_form

    check_form(form)
    if not spreadsheet_safe:
        return form
    if form != "csv":
        raise ConfigurationError(f"spreadsheet-safe: is for csv; got --format {form}")
    return SPREADSHEET_CSV


def _ending(form: str) -> str:
    from retexo_fl.methods.predict.files import predictions_name

    return Path(predictions_name(0, form)).suffix


def _tell(goal: Goal, summary: Mapping[str, Any], places: Sequence[str]) -> None:
    """Print what was predicted, how good it is, and ``places``: lines of where it is."""
    payload = summary["bytes"]["payload"]
    nodes = format_counted(summary["nodes"], "node")
    clients = format_counted(summary["clients"], "client")
    judged = ["validation", "test"] if summary["labelled"]["validation"]["nodes"] else ["test"]
    if not goal.splits_nodes:
        # What has no node of a use is not judged.
        judged = []
    lines = [
        f"predicted       {goal.predicts}{nodes} of {clients}",
        *(line for use in judged for line in _figures(summary, use, goal.counts_right)),
        *_caution(summary["labelled"], judged),
        f"bytes moved     {format_bytes(payload['total'])}, "
        f"of which between clients {format_bytes(payload['boundary'])}",
        *places,
    ]
    if summary["missing_rows"]:
        missing = format_counted(summary["missing_rows"], "vector")
        lines.insert(1, f"missing         {missing} of peers")
    tell("\n".join(lines))


def _caution(labelled: Mapping[str, Mapping[str, int]], judged: Sequence[str]) -> list[str]:
    """Return a line where no split keeps the nodes that trained the model out of the test."""
    if judged != ["test"] or labelled["train"]["nodes"] or not labelled["test"]["nodes"]:
        return []
    return [
        "                without a split all labelled nodes count, also any that trained this model"
    ]


def _figures(summary: Mapping[str, Any], use: str, counts_right: bool) -> list[str]:
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
    lines = [f"{f'{use} {name}':<15} {f'{value} {of}'.strip()}" for name, value in values.items()]
    for kind, judged in summary.get("types", {}).items():
        if nodes := (found := judged[use])["nodes"]:
            metrics = {} if metric is None else {printable(metric["name"]): found["metric"]}
            if counts_right:
                metrics["accuracy"] = found["right"] / nodes
            told = ", ".join(
                f"{name} undefined" if value is None else f"{name} {value:.4f}"
                for name, value in metrics.items()
            )
            of = f"of {format_counted(nodes, f'labelled {use} node')}"
            lines.append(f"{f'of {printable(kind)}':<15} {told} {of}")
    return lines


def _command(inference: Inference, values: Values, *, overwrite: bool) -> str:
    """Return the command that makes these predictions."""
    words = ["retexo", "predict", str(inference.model.run)]
    if not OF_GRAPH & values.keys():
        words += ["--partitions", str(inference.partitions)]
    out = None if inference.out == inference.partitions else inference.out
    options = _options(
        values, out, inference.form, allow_plugins=inference.allow_plugins, overwrite=overwrite
    )
    return shlex.join([*words, *options])


def _options(
    values: Values, out: Path | None, form: str, *, allow_plugins: bool, overwrite: bool
) -> list[str]:
    from retexo_fl.methods.predict.files import SPREADSHEET_CSV

    words = [] if out is None else ["--out", str(out)]
    if form == SPREADSHEET_CSV:
        words += ["--spreadsheet-safe"]
    elif form != "csv":
        words += ["--format", form]
    if allow_plugins:
        words.append("--allow-plugins")
    for key, value in values.items():
        words += [f"--{key}", str(value)]
    return [*words, "--overwrite"] if overwrite else words
