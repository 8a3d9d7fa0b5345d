"""``retexo predict``: use a trained model, on the parts it was trained on or on others."""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from retexo_fl.cli.options import Values, config_command, examples
from retexo_fl.cli.sentences import printable, tell
from retexo_fl.cli.settling import deployed_values, deployment_address
from retexo_fl.config import AUTO_FEATURES, RunConfig, config_values, make_config
from retexo_fl.errors import ConfigurationError, Interrupted, RetexoError
from retexo_fl.files import bare_name
from retexo_fl.units import format_bytes, format_counted

if TYPE_CHECKING:
    from retexo_fl.cli.superlink import Address
    from retexo_fl.federation.trained_model import TrainedModel
    from retexo_fl.graph import GraphPartition
    from retexo_fl.simulation.prediction_set import Workshop

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
_DEPLOYMENT: Final = "Deployment"
#: How tables are read: as they were for the run, where nothing else is said.
_READING: Final = (
    *("features", "key-column", "label-column", "edges-are", "merge-edges", "self-loops"),
)
_PANELS = {
    "Tables instead of parts": ("nodes", "edges", *_READING, "edges-before"),
    "Faults and time": ("missing-peers", "exchange-deadline-s", "message-timeout-s"),
    "Where it runs": ("engine",),
}
_DEFAULTS: Final = dict.fromkeys((*_PANELS["Faults and time"], *_READING), "as the run has it")
#: Keys of a run that say what it was trained on, by whom.
_OF_TRAINING: Final = frozenset(
    {"dataset", "data-dir", "nodes", "edges", *_READING}
    | {"edges-before", "partitioner", "split", "links"}
    | {"introductions", "relay", "min-clients", "round-deadline-s"}
)


#: Of these, what a deployment predicts by, too.
_OF_PEERS: Final = frozenset({"introductions", "relay"})
#: What takes the place of a folder of parts.
_OF_TABLES: Final = frozenset(_PANELS["Tables instead of parts"])


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    config_command(app, "predict", _PANELS, help_text=_HELP, epilog=_EXAMPLES, defaults=_DEFAULTS)(
        _predict
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Inference:
    """One inference, checked.

    Attributes:
        model: The trained layers.
        config: The run's configuration with clients, parts and policies of this inference.
        parts: All parts, by client.
        partitions: Their folder.
        out: Folder of the predictions.
        form: ``csv``, ``spreadsheet-csv``, ``parquet`` or ``npz``.
        allow_plugins: What the run's configuration names is imported.
        identity: What the summary must hold for predictions that need not be made again.
    """

    model: TrainedModel
    config: RunConfig
    parts: Sequence[GraphPartition]
    partitions: Path
    out: Path
    form: str
    allow_plugins: bool
    identity: Mapping[str, str]


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
    superlink: Annotated[
        str | None,
        typer.Option(
            help="Have the clients of this SuperLink predict on their own parts.",
            metavar="HOST:PORT",
            rich_help_panel=_DEPLOYMENT,
        ),
    ] = None,
    root_certificates: Annotated[
        Path | None,
        typer.Option(help="CA of the SuperLink.", metavar="FILE", rich_help_panel=_DEPLOYMENT),
    ] = None,
    insecure: Annotated[
        bool,
        typer.Option(
            "--insecure", help="Connect to the SuperLink without TLS.", rich_help_panel=_DEPLOYMENT
        ),
    ] = False,
    clients: Annotated[
        int,
        typer.Option(
            help="How many clients there are, if not as many as RUN had.",
            min=0,
            metavar="N",
            show_default=False,
            rich_help_panel=_DEPLOYMENT,
        ),
    ] = 0,
) -> None:
    from retexo_fl.federation.trained_model import read_trained_model
    from retexo_fl.simulation.prediction_set import (
        SUMMARY_NAME,
        clear_workshops,
        finished_summary,
        owned_folder,
    )

    form = _form(form, spreadsheet_safe)
    address = deployment_address(superlink, root_certificates, insecure=insecure)
    if address is not None:
        if partitions is not None or _OF_TABLES & values.keys():
            name = min(
                {*(() if partitions is None else ("partitions",)), *_OF_TABLES & values.keys()}
            )
            raise ConfigurationError(
                f"{name}: cannot be given with superlink; clients predict on their own parts"
            )
        model = read_trained_model(run, allow_plugins=allow_plugins)
        words = _options(values, out, form, allow_plugins=allow_plugins, overwrite=overwrite)
        place = run / "predictions" if out is None else out
        _predict_in_place(
            _config_in_place(deployed_values(values), model, clients),
            {"run": str(run.absolute()), "folder": str(place.absolute()), "form": form},
            address,
            again=f"retexo predict {shlex.join([str(run), *words])} {address.options()}"
            + (f" --clients {clients}" if clients else ""),
            overwrite=overwrite,
            quiet=quiet,
        )
        return
    if clients:
        raise ConfigurationError("clients: expected only with --superlink HOST:PORT")
    with ExitStack() as stack:
        model = read_trained_model(run, allow_plugins=allow_plugins)
        if partitions is None:
            folder = Path(stack.enter_context(TemporaryDirectory(prefix="retexo-")))
            partitions = _parts_of_tables(values, model, out, folder)
        elif _OF_TABLES & values.keys():
            raise ConfigurationError(
                f"{min(_OF_TABLES & values.keys())}: cannot be given with partitions; expected one "
                "of the two"
            )
        inference = _checked(values, model, partitions, out, form, allow_plugins=allow_plugins)
        stack.enter_context(owned_folder(inference.out))
        summary = None if overwrite else finished_summary(inference.out, inference.identity)
        if summary is None:
            again = _command(inference, values, overwrite=overwrite)
            summary = _make(inference, again, quiet=quiet)
        else:
            clear_workshops(inference.out)
            tell("made already; --overwrite makes them again")
    places = (
        f"predictions     {inference.out / f'predictions-*{_ending(form)}'}",
        f"summary         {inference.out / SUMMARY_NAME}",
    )
    _tell(model.config.task, summary, places)


def _predict_in_place(
    config: RunConfig,
    task: Mapping[str, str],
    address: Address,
    *,
    again: str,
    overwrite: bool,
    quiet: bool,
) -> None:
    """Have clients predict on their own parts, and say how that went."""
    from retexo_fl.cli.deployed_predict import predict_deployed
    from retexo_fl.federation.prediction_in_place import InPlaceTask

    with _startable_again(again):
        place, summary = predict_deployed(
            config, InPlaceTask(**task, overwrite=overwrite), address=address, quiet=quiet
        )
    if summary is None:
        tell(f"summary         {place} where the SuperLink runs")
        return
    kept = f"{summary['set']}/predictions-CLIENT{_ending(summary['format'])}"
    places = (
        f"predictions     {kept} below each client's own folder",
        f"summary         {place}",
    )
    _tell(config.task, summary, places)


def _config_in_place(values: Values, model: TrainedModel, clients: int) -> RunConfig:
    """Return the configuration of the run, for clients that have their parts."""
    of_training = (_OF_TRAINING - _OF_PEERS) | {"partitions"}
    trained = {k: v for k, v in config_values(model.config).items() if k not in of_training}
    return make_config({**trained, "clients": clients or model.config.clients, **values})


@contextmanager
def _startable_again(command: str) -> Iterator[None]:
    """Say how to start again what is interrupted, or fails with a name."""
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted(f"interrupted; start again with: {command}") from None
    except RetexoError as error:
        if error.exit_code != 1:
            raise
        raise type(error)(f"{error}; start again with: {command}") from error


def _parts_of_tables(values: Values, model: TrainedModel, out: Path | None, folder: Path) -> Path:
    """Write the graph of two tables as one part below ``folder``; return the folder of parts.

    Its columns are used as those of the run were, by the recipe that the run directory holds.
    """
    from retexo_fl.client.preparation import make_whole_part
    from retexo_fl.graph import write_partitions
    from retexo_fl.graph.recipes.recipe import RECIPE_NAME, named_recipe

    if not values.get("nodes"):
        raise ConfigurationError("partitions: missing; expected it, or --nodes and --edges")
    if out is None:
        raise ConfigurationError("out: missing; expected a folder for the predictions of tables")
    given = {key: value for key, value in values.items() if key in _OF_TABLES}
    kept = model.run / RECIPE_NAME
    if model.recipe and given.get("features", AUTO_FEATURES) == AUTO_FEATURES:
        if not kept.exists():
            raise ConfigurationError(
                f"features: missing; expected --features and the file of "
                f"{named_recipe(model.recipe)}, which {model.run} does not hold"
            )
        given["features"] = str(kept)
    trained = config_values(model.config)
    # Where there is a recipe, it names the columns.
    as_trained = [key for key in _READING[1:] if not (model.recipe and key.endswith("-column"))]
    given = {**{key: trained[key] for key in as_trained}, **given}
    part = make_whole_part(
        make_config({**given, "clients": 1, "task": model.config.task}),
        features=model.shape.features_before_basis or model.shape.inputs,
        classes=model.shape.classes,
    )
    parts = folder / bare_name(Path(str(given["nodes"])))
    write_partitions([part], parts)
    return parts


def _form(form: str, spreadsheet_safe: bool) -> str:
    from retexo_fl.client.prediction_files import SPREADSHEET_CSV, check_form

    check_form(form)
    if not spreadsheet_safe:
        return form
    if form != "csv":
        raise ConfigurationError(f"spreadsheet-safe: is for csv; got --format {form}")
    return SPREADSHEET_CSV


def _checked(
    values: Values,
    model: TrainedModel,
    partitions: Path,
    out: Path | None,
    form: str,
    *,
    allow_plugins: bool,
) -> Inference:
    """Check everything that can be known before a client is asked."""
    from retexo_fl.client.edge_fit import check_edges, note_unused_edges
    from retexo_fl.client.prediction_files import check_keys
    from retexo_fl.client.preparation import open_parts, part_paths
    from retexo_fl.graph.labels import check_task

    if values.get("engine") == "deployment":
        raise ConfigurationError(
            "engine: a deployment predicts where its clients' parts are; expected inline or "
            "flower, or --superlink HOST:PORT in place of partitions"
        )
    parts = open_parts(partitions)
    model.check_fits(
        recipe=parts[0].recipe_digest,
        features=parts[0].num_features,
        classes=parts[0].num_classes,
        edge_features=parts[0].edge_values.num_attributes,
        source=str(partitions),
    )
    for part, path in zip(parts, part_paths(partitions), strict=True):
        check_task(part.labels, model.config.task, source=str(path))
        check_keys(part.node_keys, form, source=str(path))
        check_edges(model.config.model, part)
    note_unused_edges(model.config.model, parts)
    trained = {k: v for k, v in config_values(model.config).items() if k not in _OF_TRAINING}
    places = {"partitions": str(partitions.absolute()), "clients": len(parts), "engine": "inline"}
    policies = {key: value for key, value in values.items() if key not in _OF_TABLES}
    config = make_config({**trained, **places, **policies})
    return Inference(
        model=replace(model, run=model.run.absolute()),
        config=config,
        parts=parts,
        partitions=partitions,
        out=partitions if out is None else out,
        form=form,
        allow_plugins=allow_plugins,
        identity={
            "model_digest": model.digest,
            "parts_digest": _parts_digest(partitions),
            "missing_peers": config.missing_peers,
            "format": form,
        },
    )


def _parts_digest(folder: Path) -> str:
    """Return 64 hex digits that name parts by all of their content, which manifests list."""
    from retexo_fl.client.preparation import part_paths
    from retexo_fl.graph.parts.manifest import MANIFEST_NAME

    digest = hashlib.sha256()
    for path in part_paths(folder):
        digest.update(hashlib.sha256((path / MANIFEST_NAME).read_bytes()).digest())
    return digest.hexdigest()


def _make(inference: Inference, again: str, *, quiet: bool) -> dict[str, Any]:
    """Make the predictions; return the facts about them.

    Raises:
        Interrupted: The user stopped it; says how to start ``again``, as a named failure does.
    """
    from retexo_fl.simulation.prediction_set import workshop

    with _startable_again(again), workshop(inference.out) as place:
        return _make_in(place, inference, quiet=quiet)


def _make_in(place: Workshop, inference: Inference, *, quiet: bool) -> dict[str, Any]:
    from retexo_fl.federation.prediction_app import PredictionTask, read_outcome
    from retexo_fl.progress.prediction import PredictionTable

    config, model = inference.config, inference.model
    name = inference.partitions.absolute().name
    table = PredictionTable(partitions=name, model=config.model, engine=config.engine, quiet=quiet)
    task = PredictionTask(
        run=str(model.run), folder=str(place.server.absolute()), form=inference.form
    )
    if config.engine == "flower":
        from retexo_fl.cli.flower_predict import predict_on_flower

        predict_on_flower(config, task, place, table)
    else:
        from retexo_fl.simulation.inline_engine import predict_inline

        with table:
            predict_inline(
                config,
                list(inference.parts),
                task,
                predictions=place.clients,
                listeners=[table.handle],
            )
    outcome = read_outcome(place.server)
    rows = {int(client): nodes for client, nodes in outcome.pop("nodes").items()}
    summary = {**_facts(inference), "nodes": sum(rows.values()), **outcome}
    place.settle(summary, rows, inference.form)
    return summary


def _facts(inference: Inference) -> dict[str, Any]:
    """Return the summary's facts about model and parts."""
    shape = inference.model.shape
    return {
        "run": inference.model.run.name,
        "model": shape.model,
        "layers": shape.layers,
        "features": shape.features,
        "classes": shape.classes,
        "dtype": shape.dtype,
        "partitioning": inference.parts[0].partitioning,
        "clients": len(inference.parts),
        "engine": inference.config.engine,
        **inference.identity,
    }


def _ending(form: str) -> str:
    from retexo_fl.client.prediction_files import predictions_name

    return Path(predictions_name(0, form)).suffix


def _tell(task: str, summary: Mapping[str, Any], places: Sequence[str]) -> None:
    """Print what was predicted, how good it is, and ``places``: lines of where it is."""
    from retexo_fl.graph.labels import LINKS, REGRESSION

    payload = summary["bytes"]["payload"]
    nodes = format_counted(summary["nodes"], "node")
    clients = format_counted(summary["clients"], "client")
    judged = ["validation", "test"] if summary["labelled"]["validation"]["nodes"] else ["test"]
    what = ""
    if task == LINKS:
        judged, what = [], "the likeliest links of "
    # There are no right answers of numbers.
    counts_right = task != REGRESSION
    lines = [
        f"predicted       {what}{nodes} of {clients}",
        *(line for use in judged for line in _figures(summary, use, counts_right=counts_right)),
        f"bytes moved     {format_bytes(payload['total'])}, "
        f"of which between clients {format_bytes(payload['boundary'])}",
        *places,
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
    words = ["retexo", "predict", str(inference.model.run)]
    if not _OF_TABLES & values.keys():
        words += ["--partitions", str(inference.partitions)]
    out = None if inference.out == inference.partitions else inference.out
    options = _options(
        values, out, inference.form, allow_plugins=inference.allow_plugins, overwrite=overwrite
    )
    return shlex.join([*words, *options])


def _options(
    values: Values, out: Path | None, form: str, *, allow_plugins: bool, overwrite: bool
) -> list[str]:
    from retexo_fl.client.prediction_files import SPREADSHEET_CSV

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
