"""Predicting with the model of a finished run, as the command line and Python do it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final, TypedDict, Unpack

from retexo_fl.api.predicted_graph import OF_GRAPH, predicted_graph
from retexo_fl.api.settling import Values
from retexo_fl.api.training import named_end
from retexo_fl.api.values import values_of, with_frames
from retexo_fl.config import RunConfig, config_values, make_config
from retexo_fl.errors import ConfigurationError
from retexo_fl.files import bare_name
from retexo_fl.simulation.ray_cluster import check_answers, ray_address_of
from retexo_fl.units import format_counted

if TYPE_CHECKING:
    from retexo_fl.federation.trained_model import TrainedModel
    from retexo_fl.graph.parts.partition import GraphPartition
    from retexo_fl.simulation.prediction_set import Workshop

#: Keys of a run that say what it was trained on, by whom.
_OF_TRAINING: Final = frozenset(
    OF_GRAPH
    | {"partitioner", "split", "links", "drop-columns"}
    | {"introductions", "relay", "min-clients", "round-deadline-s", "secure-aggregation"}
)
#: Of these, what a deployment predicts by, too.
_OF_PEERS: Final = frozenset({"introductions", "relay", "secure-aggregation"})

#: Keys that an inference may choose for itself.
POLICIES: Final = ("missing-peers", "exchange-deadline-s", "message-timeout-s")


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


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedPredictions:
    """What predictions a user asks for.

    Attributes:
        run: Directory of a finished run.
        values: Of :data:`POLICIES`, ``engine``, and instead of parts :data:`OF_GRAPH`.
        partitions: Folder of parts; None for tables, or for ``parts``.
        parts: Makes all parts for the model, instead of a folder.
        out: Folder of the predictions, if not that of the parts.
        form: ``csv``, ``spreadsheet-csv``, ``parquet`` or ``npz``.
        overwrite: Replace what is there.
        allow_plugins: Import what the run's configuration names.
        quiet: Show no progress.
        ray_address: ``HOST:PORT`` of a Ray cluster that is there, for Flower's simulation.
    """

    run: Path
    values: Values
    partitions: Path | None = None
    parts: Callable[[TrainedModel], Sequence[GraphPartition]] | None = None
    out: Path | None = None
    form: str = "csv"
    overwrite: bool = False
    allow_plugins: bool = False
    quiet: bool = False
    ray_address: str | None = None


def predict_asked(
    asked: AskedPredictions, *, again: Callable[[Inference], str], tell: Callable[[str], None]
) -> tuple[Inference, dict[str, Any]]:
    """Make predictions, or find that they are there.

    Args:
        asked: What is asked for.
        again: Says how to start the inference again, for an error.
        tell: Is handed a sentence where nothing had to be made.

    Returns:
        The inference, and the facts that ``predictions.json`` holds of it.

    Raises:
        InputError: Run, parts or tables cannot be used, or do not belong together.
        Interrupted: The user stopped it.
        RetexoError: Any other named failure.
    """
    from retexo_fl.federation.trained_model import read_trained_model
    from retexo_fl.simulation.prediction_set import (
        clear_workshops,
        finished_summary,
        owned_folder,
    )

    with ExitStack() as stack:
        model = read_trained_model(asked.run, allow_plugins=asked.allow_plugins)
        partitions = stack.enter_context(_folder_of_parts(asked, model))
        inference = _checked(asked, model, partitions)
        cluster = ray_address_of(asked.ray_address, inference.config.engine)
        stack.enter_context(owned_folder(inference.out))
        summary = None
        if not asked.overwrite:
            summary = finished_summary(inference.out, inference.identity)
        if summary is None:
            with named_end(lambda: f"start again with: {again(inference)}"):
                summary = _make(inference, cluster, quiet=asked.quiet)
        else:
            clear_workshops(inference.out)
            tell("made already; --overwrite makes them again")
    return inference, summary


@contextmanager
def _folder_of_parts(asked: AskedPredictions, model: TrainedModel) -> Iterator[Path]:
    """Yield a folder of parts; one that is made for the purpose is removed again."""
    if asked.partitions is not None:
        if OF_GRAPH & asked.values.keys():
            raise ConfigurationError(
                f"{min(OF_GRAPH & asked.values.keys())}: cannot be given with partitions; "
                "expected one of the two"
            )
        yield asked.partitions
        return
    from retexo_fl.graph.parts.storage import write_partitions

    with TemporaryDirectory(prefix="retexo-") as name:
        if asked.parts is None:
            named = asked.values.get("nodes") or asked.values.get("dataset")
            if not named:
                raise ConfigurationError(
                    "partitions: missing; expected it, or --nodes and --edges, or --dataset"
                )
            _demand_out(asked, "a whole graph")
            folder = Path(name) / bare_name(Path(str(named)))
            parts: Sequence[GraphPartition] = [_part_of(None, asked.values, model)]
        else:
            _demand_out(asked, "parts that are no folder")
            folder, parts = Path(name) / "parts", asked.parts(model)
        write_partitions(parts, folder)
        yield folder


def _demand_out(asked: AskedPredictions, what: str) -> None:
    if asked.out is None:
        raise ConfigurationError(f"out: missing; expected a folder for the predictions of {what}")


def _part_of(graph: object | None, values: Values, model: TrainedModel) -> GraphPartition:
    """Return a whole graph as one part."""
    from retexo_fl.client.preparation import whole_part

    given = {key: value for key, value in values.items() if key in OF_GRAPH}
    whole = predicted_graph(graph, model, values=given)
    _, _, column = model.config.split.partition("published:")
    return whole_part(whole, column=int(column or 0))


def _checked(asked: AskedPredictions, model: TrainedModel, partitions: Path) -> Inference:
    """Check everything that can be known before a client is asked."""
    from retexo_fl.client.part import check_edges, note_unused_edges
    from retexo_fl.client.preparation import open_parts, part_paths
    from retexo_fl.graph.labels import labels_for
    from retexo_fl.methods.predict.files import check_keys
    from retexo_fl.training.columns import with_structure

    values, form = asked.values, asked.form
    if values.get("engine") == "deployment":
        raise ConfigurationError(
            "engine: a deployment predicts where its clients' parts are; expected inline or "
            "flower, or `retexo predict --superlink HOST:PORT` in place of partitions"
        )
    parts = [with_structure(part, model.config) for part in open_parts(partitions)]
    model.check_fits(
        recipe=parts[0].recipe_digest,
        features=parts[0].num_features,
        classes=parts[0].num_classes,
        edge_features=parts[0].edge_values.num_attributes,
        is_structural=parts[0].is_structural,
        relations=parts[0].relations,
        source=str(partitions),
    )
    has_train = any(part.train_mask.any() for part in parts)
    model.check_train_nodes(are_there=has_train, source=str(partitions))
    for part, path in zip(parts, part_paths(partitions), strict=True):
        labels_for(model.config.task).check_fit(part.labels, source=str(path))
        check_keys(part.node_keys, form, source=str(path))
        check_edges(model.config.model, part)
    note_unused_edges(model.config.model, parts)
    trained = {k: v for k, v in config_values(model.config).items() if k not in _OF_TRAINING}
    places = {"partitions": str(partitions.absolute()), "clients": len(parts), "engine": "inline"}
    policies = {key: value for key, value in values.items() if key not in OF_GRAPH}
    config = make_config({**trained, **places, **policies})
    return Inference(
        model=replace(model, run=model.run.absolute()),
        config=config,
        parts=parts,
        partitions=partitions,
        out=partitions if asked.out is None else asked.out,
        form=form,
        allow_plugins=asked.allow_plugins,
        identity={
            "model_digest": model.digest,
            "parts_digest": _parts_digest(partitions),
            "missing_peers": config.missing_peers,
            "format": form,
        },
    )


def config_in_place(values: Values, model: TrainedModel, clients: int) -> RunConfig:
    """Return the configuration of a run, for clients that have their parts; 0 for as many."""
    of_training = (_OF_TRAINING - _OF_PEERS) | {"partitions"}
    trained = {k: v for k, v in config_values(model.config).items() if k not in of_training}
    return make_config({**trained, "clients": clients or model.config.clients, **values})


def _parts_digest(folder: Path) -> str:
    """Return 64 hex digits that name parts by all of their content, which manifests list."""
    from retexo_fl.client.preparation import part_paths
    from retexo_fl.graph.parts.manifest import MANIFEST_NAME

    digest = hashlib.sha256()
    for path in part_paths(folder):
        digest.update(hashlib.sha256((path / MANIFEST_NAME).read_bytes()).digest())
    return digest.hexdigest()


def _make(inference: Inference, cluster: str, *, quiet: bool) -> dict[str, Any]:
    """Make the predictions, on Ray's ``cluster`` if there is one; return the facts about them."""
    from retexo_fl.simulation.prediction_set import workshop

    if cluster:
        check_answers(cluster)
    with workshop(inference.out) as place:
        return _make_in(place, inference, cluster, quiet=quiet)


def _make_in(place: Workshop, inference: Inference, cluster: str, *, quiet: bool) -> dict[str, Any]:
    from retexo_fl.federation.prediction_app import PredictionTask, read_outcome
    from retexo_fl.progress.prediction import PredictionTable

    config, model = inference.config, inference.model
    name = inference.partitions.absolute().name
    table = PredictionTable(partitions=name, model=config.model, engine=config.engine, quiet=quiet)
    task = PredictionTask(
        run=str(model.run), folder=str(place.server.absolute()), form=inference.form
    )
    if config.engine == "flower":
        from retexo_fl.api.flower_predict import predict_on_flower

        predict_on_flower(config, task, place, table, ray_address=cluster)
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
    return {
        **inference.model.facts(),
        "partitioning": inference.parts[0].partitioning,
        "clients": len(inference.parts),
        "engine": inference.config.engine,
        **inference.identity,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Predictions:
    """All clients' predictions.

    Attributes:
        folder: Where they are.
        files: One for each client, in their order.
        summary: The facts that ``predictions.json`` holds: bytes, counts of right answers, ...
    """

    folder: Path
    files: tuple[Path, ...]
    summary: Mapping[str, Any]

    def __repr__(self) -> str:
        nodes = format_counted(self.summary["nodes"], "node")
        files = format_counted(len(self.files), "file")
        return f"<Predictions of {nodes}: {files} in {str(self.folder)!r}>"


def predict_for(
    run: Path,
    source: object,
    *,
    keys: Mapping[str, object],
    **how: Unpack[How],
) -> Predictions:
    """Predict for a caller in Python; see :meth:`retexo_fl.Run.predict`."""
    from retexo_fl.methods.predict.files import check_form, predictions_name

    keys, source = with_frames(dict(keys), source)
    values = values_of(keys)
    for key in values:
        if key not in {*OF_GRAPH, *POLICIES, "engine"}:
            raise ConfigurationError(f"{key}: cannot be chosen for a prediction; expected no such")
    check_form(how["form"])
    asked = AskedPredictions(run=run, values=values, **_source(source, values), **how)
    inference, summary = predict_asked(asked, again=lambda _: "the same call", tell=lambda _: None)
    names = [predictions_name(client, how["form"]) for client in range(summary["clients"])]
    return Predictions(
        folder=inference.out,
        files=tuple(inference.out / name for name in names),
        summary=summary,
    )


class How(TypedDict):
    """What else :class:`AskedPredictions` holds."""

    out: Path | None
    form: str
    overwrite: bool
    allow_plugins: bool
    quiet: bool
    ray_address: str | None


def _source(source: object, keys: Values) -> dict[str, Any]:
    """Return where parts are, or what makes them; nothing of a graph that is named by keys."""
    from retexo_fl.graph.sources.tables import tables_of

    if source is None:
        if not {"nodes", "dataset"} & keys.keys():
            raise ConfigurationError(
                "source: missing; expected parts or a graph, or nodes and edges"
            )
        return {}
    if isinstance(source, str | Path):
        return {"partitions": Path(source)}
    if isinstance(source, list) and tables_of(source) is None:
        return {"parts": lambda _: list(source)}

    return {"parts": lambda model: [_part_of(source, keys, model)]}
