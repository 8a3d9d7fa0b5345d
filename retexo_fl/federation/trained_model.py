"""The model of a finished run, read from its directory, which is not changed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from retexo_fl.config import RunConfig, client_plugins, config_values, make_config, named_plugins
from retexo_fl.config.file import read_config_file
from retexo_fl.errors import (
    CheckpointError,
    PartitionError,
    PluginError,
    RemoteProtocolError,
    RunDirectoryError,
)
from retexo_fl.federation.job_state import JobState
from retexo_fl.federation.layer_files import (
    LayerFacts,
    basis_path,
    columns_path,
    floor_path,
    layer_path,
    read_basis_file,
    read_flat_file,
    read_layer_file,
    refined_path,
)
from retexo_fl.federation.resume_checks import check_no_plugins
from retexo_fl.federation.rounds.stage_state import StageOutcome
from retexo_fl.graph.labels import labels_for
from retexo_fl.graph.recipes.recipe import RECIPE_NAME, named_recipe, read_recipe
from retexo_fl.layers.named import layer_class
from retexo_fl.relations import Relations, relations_of
from retexo_fl.training.basis import BasisForm
from retexo_fl.training.columns import ColumnMap
from retexo_fl.training.recipe import objective_of
from retexo_fl.training.row_classes import RowClasses, parted_basis
from retexo_fl.training.stage_model import ModelShape, StageModel, flat_weights, named_weights


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TrainedModel:
    """The selected layers of a run.

    Attributes:
        run: The run directory.
        config: Its configuration.
        shape: Sizes of the model.
        weights: (P,) of each stage.
        basis: Of the features, as it travels; None without one.
        recipe: Digest of the recipe that made the input features; empty without one.
        label_facts: Of a regression, mean and scale of the labels that it was trained on.
        is_structural: Its input features are made of the edges.
        columns: What makes them of columns, as it travels; None where they are degrees alone.
    """

    run: Path
    config: RunConfig
    shape: ModelShape
    weights: tuple[np.ndarray, ...]
    basis: np.ndarray | None = None
    recipe: str = ""
    label_facts: tuple[float, ...] = ()
    is_structural: bool = False
    columns: np.ndarray | None = None

    @property
    def digest(self) -> str:
        """64 hex digits that name everything in the model that decides a prediction."""
        shape = asdict(self.shape)
        # As it was named before there were any.
        for name in (
            "features_before_basis",
            "basis_of_sums",
            "chooses_basis",
            "reads_all_far",
            "sends_layer_inputs",
            "tells_classes",
            "passes_sums",
            "validates_penalty",
            "wants_floor",
            "edge_features",
            "link_head",
            "directed_links",
            "is_weightless",
            "relations",
            "num_bases",
            "taught",
            "refines",
            "predicted",
            "made_columns",
            "column_steps",
            "sums_labels",
        ):
            if not shape[name]:
                del shape[name]
        facts = {
            **shape,
            "feature_normalisation": self.config.feature_normalisation,
            "drops_edges": self.config.traits.drops_edges,
            # Of classes it is named as before there were other labels.
            **labels_for(self.config.task).key,
            **({"label_facts": self.label_facts} if self.label_facts else {}),
            **({"is_structural": True} if self.is_structural else {}),
        }
        digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode())
        made = [one for one in (self.columns, self.basis) if one is not None]
        for weights in (*made, *self.weights):
            digest.update(weights.tobytes())
        return digest.hexdigest()

    def facts(self) -> dict[str, Any]:
        """Return what a summary of predictions says of the model, as JSON has it."""
        shape = self.shape
        return {
            "run": self.run.name,
            "model": shape.model,
            "layers": shape.layers,
            "features": shape.features,
            "classes": shape.classes,
            "dtype": shape.dtype,
        }

    def named_classes(self) -> tuple[str, ...]:
        """Return the names of classes, where a recipe names them alone.

        Raises:
            ConfigurationError: The run directory does not hold that recipe.
        """
        path = self.run / RECIPE_NAME
        if not self.recipe or not path.exists():
            return ()
        recipe = read_recipe(path)
        return recipe.classes if not recipe.columns and recipe.digest == self.recipe else ()

    def job(self, name: str) -> JobState:
        """Return a job of which all stages are done: with the layers of this model."""
        outcomes = [StageOutcome.untrained(*of_stage) for of_stage in enumerate(self.weights)]
        return JobState(job=name, columns=self.columns, basis=self.basis, outcomes=outcomes)

    def check_train_nodes(self, *, are_there: bool, source: str) -> None:
        """Check that there are the labels that columns are made of.

        Raises:
            PartitionError: There are none; the message names ``source``.
        """
        if self.shape.sums_labels and not are_there:
            raise PartitionError(
                f"{source}: there is no train node, and the model in {self.run} reads which train "
                "labels are near a node (structure labels); expected the train nodes' labels, and "
                "a split that names them, for `retexo predict`"
            )

    def check_fits(
        self,
        *,
        recipe: str,
        features: int,
        classes: int,
        edge_features: int,
        is_structural: bool,
        relations: Relations | None,
        source: str,
    ) -> None:
        """Check that parts have the sizes and the recipe that the model was trained with.

        Raises:
            PartitionError: They have not; the message names ``source``.
        """
        if recipe != self.recipe:
            raise PartitionError(
                f"{source}: the parts are of {named_recipe(recipe)}; expected "
                f"{named_recipe(self.recipe)}, as the model in {self.run} was trained with"
            )
        if self.shape.link_head and relations is not None:
            # Labels are not read.
            relations = replace(relations, with_labels=())
        if relations != self.shape.relations:
            raise PartitionError(
                f"{source}: the parts are of other types and relations; expected those that the "
                f"model in {self.run} was trained with"
            )
        if is_structural != self.is_structural:
            has, wanted = "no features", "features"
            if not is_structural:
                has, wanted = "features", "none (features none leaves them out)"
            raise PartitionError(
                f"{source}: nodes have {has}; expected {wanted}, as the model in {self.run} was "
                "trained"
            )
        given = {"features": (features, self.shape.features)}
        if not self.shape.link_head:
            given["classes"] = (classes, self.shape.classes)
        if layer_class(self.config.model).attributes != "none":
            given["attributes of edges"] = (edge_features, self.shape.edge_features)
        for name, (got, expected) in given.items():
            if got != expected:
                raise PartitionError(
                    f"{source}: the parts have {got} {name}; expected {expected}, as the model in "
                    f"{self.run} was trained with"
                )


def read_trained_model(run: Path, *, allow_plugins: bool = False) -> TrainedModel:
    """Read configuration and layers of a finished run.

    Args:
        run: Its directory.
        allow_plugins: Import the plug-ins that its configuration names.

    Raises:
        RunDirectoryError: There is no run, it has not finished, or a layer is missing, damaged or
            not of this run.
        ConfigurationError: Its configuration cannot be read.
        PluginError: It names a plug-in that is not allowed, or cannot be imported here.
    """
    _check_finished(run)
    config = make_config(read_config_file(run / "config.toml"))
    if not allow_plugins:
        named, ours = named_plugins(config_values(config)), client_plugins(config)
        check_no_plugins({key: name for key, name in named.items() if key in ours}, run)
    try:
        layer_class(config.model)
    except PluginError as error:
        raise PluginError(f"model: {error}") from error
    paths = [layer_path(run, layer) for layer in range(config.layers)]
    keeps_floor = _keeps_floor(run)
    if keeps_floor:
        config, paths[-1] = replace(config, solver="ridge"), floor_path(run)
    else:
        # What was compared is done with.
        config = replace(config, floor="none")
    layers = _read_layers(paths)
    first = layers[0][0]
    shape = ModelShape.of(
        config,
        inputs=first.features,
        classes=first.classes,
        edge_features=first.edge_features,
        relations=relations_of(first.relations),
        is_structural=first.is_structural,
    )
    if shape.refines:
        # Its last two layers were trained together at the end; that is done with.
        paths[-2:] = (refined_path(run, layer) for layer in range(config.layers)[-2:])
        layers[-2:] = _read_layers(paths[-2:])
        config = replace(config, unlabelled_types="trained")
        shape = replace(shape, refines=False)
    if keeps_floor:
        # The file is that of the trained layer; beneath a floor it passes on what it reads.
        layers[0] = first, named_weights(shape, 0, np.zeros(0, shape.dtype))
    for stage, (facts, tensors) in enumerate(layers):
        expected = replace(first, stage=stage)
        _check_layer(shape, expected, facts, tensors, source=paths[stage])
    weights = tuple(
        flat_weights(shape, stage, tensors) for stage, (_, tensors) in enumerate(layers)
    )
    if not any(len(of_stage) for of_stage in weights):
        raise RunDirectoryError(
            f"{run}: the run left no weights to predict with; expected one that trained a model"
        )
    # Of links, a stage comes first in which features cross.
    weights = (*[np.zeros(0, shape.dtype)] * shape.stage_of(0), *weights)
    basis = _read_basis(run, config, shape) if shape.has_basis else None
    if len(first.label_facts) != objective_of(config).label_facts.num_units:
        raise RunDirectoryError(
            f"{layer_path(run, 0)}: has {len(first.label_facts)} numbers of labels; expected mean "
            "and scale with task regression, else none"
        )
    return TrainedModel(
        run=run,
        config=config,
        shape=shape,
        weights=weights,
        basis=basis,
        recipe=first.recipe,
        label_facts=first.label_facts,
        is_structural=first.is_structural,
        columns=_read_columns(run, shape) if shape.made_columns else None,
    )


def _read_layers(paths: Sequence[Path]) -> list[tuple[LayerFacts, dict[str, np.ndarray]]]:
    try:
        return [read_layer_file(path) for path in paths]
    except CheckpointError as error:
        raise RunDirectoryError(str(error)) from error


def _read_columns(run: Path, shape: ModelShape) -> np.ndarray:
    source = columns_path(run)
    try:
        _, columns = read_flat_file(source, "columns")
        ColumnMap.decode(columns, degrees=shape.made_degrees, columns=shape.mixed_columns)
    except (CheckpointError, RemoteProtocolError) as error:
        raise RunDirectoryError(f"{source}: {error}") from error
    return columns


def _keeps_floor(run: Path) -> bool:
    """Return whether a finished run kept a last layer that was solved for."""
    try:
        floor = json.loads((run / "result.json").read_text(encoding="utf-8")).get("floor") or {}
        return bool(floor.get("kept") == "floor")
    except (OSError, ValueError, AttributeError) as error:
        raise RunDirectoryError(f"{run}: result.json is damaged ({error})") from error


def _read_basis(run: Path, config: RunConfig, shape: ModelShape) -> np.ndarray:
    source = basis_path(run)
    try:
        facts, basis = read_basis_file(source)
    except CheckpointError as error:
        raise RunDirectoryError(str(error)) from error
    expected = LayerFacts(stage=0, features=shape.features, classes=shape.classes)
    if facts != expected:
        raise RunDirectoryError(f"{source}: is {facts}; expected {expected}")
    form = BasisForm(features=shape.features, dtype=config.dtype, bits=config.basis_bits)
    try:
        told, plain = parted_basis(basis, shape)
        if shape.tells_classes:
            RowClasses.of_told(told, shape)
        width = form.decode(plain).directions.shape[1]
    except RemoteProtocolError as error:
        raise RunDirectoryError(f"{source}: {error}") from error
    if width != shape.inputs:
        raise RunDirectoryError(f"{source}: has {width} directions; expected {shape.inputs}")
    return basis


def _check_finished(run: Path) -> None:
    try:
        present, finished = (run / "config.toml").is_file(), (run / "result.json").is_file()
    except OSError as error:
        raise RunDirectoryError(f"{run}: cannot be used ({error.strerror})") from error
    if not present:
        raise RunDirectoryError(
            f"{run}: holds no run (config.toml is missing); expected a run directory"
        )
    if not finished:
        raise RunDirectoryError(
            f"{run}: the run has not finished (result.json is missing); expected a finished one; "
            f"resume it with `retexo run --resume {run}`"
        )


def _check_layer(
    shape: ModelShape,
    expected: LayerFacts,
    facts: LayerFacts,
    tensors: dict[str, np.ndarray],
    *,
    source: Path,
) -> None:
    if facts != expected:
        raise RunDirectoryError(f"{source}: is {facts}; expected {expected}")
    parameters = StageModel(shape, facts.stage).named_parameters()
    wanted = {name: (tuple(item.shape), shape.dtype) for name, item in parameters}
    found = {name: (item.shape, str(item.dtype)) for name, item in tensors.items()}
    for name in sorted(wanted.keys() | found.keys()):
        if wanted.get(name) != found.get(name):
            raise RunDirectoryError(
                f"{source}: {name}: got {_told(found.get(name))}; expected "
                f"{_told(wanted.get(name))}, by config.toml of the run"
            )


def _told(form: tuple[tuple[int, ...], str] | None) -> str:
    return "nothing" if form is None else f"{form[1]} of shape {form[0]}"
