"""A graph that is predicted, in any form that a run takes, as the model of a run reads it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from retexo_fl.config import AUTO_FEATURES, NO_FEATURES, RunConfig, config_values, make_config
from retexo_fl.config.checks import OF_TABLES
from retexo_fl.config.goals import AUTO
from retexo_fl.errors import ConfigurationError, DatasetError

if TYPE_CHECKING:
    from retexo_fl.config import Scalar
    from retexo_fl.federation.trained_model import TrainedModel
    from retexo_fl.graph.graph import Graph

#: How a graph is read: as it was for the run, where nothing else is said.
READING: Final = (
    *OF_TABLES,
    *("edges-are", "merge-edges", "self-loops", "unknown-nodes", "type-column", "label-column"),
)
#: What names a graph, and says how it is read.
OF_GRAPH: Final = frozenset({"nodes", "edges", "dataset", "data-dir", *READING, "edges-before"})
#: Name in the configuration of a table that is no file, or is not there.
_NO_FILE: Final = "-"


def predicted_graph(
    graph: object | None,
    model: TrainedModel,
    *,
    values: Mapping[str, Scalar] | None = None,
    labels: bool = True,
) -> Graph:
    """Return a graph as a model reads it: labels may be there, and so may edges.

    Args:
        graph: What a run takes as ``graph``; None for what ``values`` name.
        model: The trained layers.
        values: Of :data:`OF_GRAPH`.
        labels: Read labels and split, where there are any.

    Raises:
        InputError: It is no such graph, or does not fit the model.
    """
    from retexo_fl.client.preparation import given_graph, load_graph, reading_of
    from retexo_fl.graph.graph import Graph
    from retexo_fl.graph.labels import LINKS, labels_for
    from retexo_fl.graph.sources.tables import tables_of
    from retexo_fl.graph.sources.tables.source import TYPE_COLUMN

    classes = model.named_classes()
    if isinstance(graph, Graph):
        return in_classes(graph, classes) if classes else graph
    values = dict(values or {})
    relations = model.shape.relations
    is_typed = relations is not None
    of_types = is_typed and "nodes" in values
    if graph is None and "nodes" in values and not of_types:
        edges = values.get("edges")
        graph = (Path(str(values["nodes"])), Path(str(edges)) if edges else None)
    is_table = of_types or tables_of(graph) is not None
    config = _config(values, model, is_table=is_table, is_read_here=not of_types)
    # Of types without any, the model was made with features none, too.
    has_none = model.is_structural or model.config.features == NO_FEATURES
    reading = replace(
        reading_of(config),
        labels=labels_for(model.config.task) if labels else LINKS,
        masks=labels,
        outputs=model.shape.classes,
        classes=() if is_table else classes,
        num_features=0 if has_none else model.shape.features,
        types=config.type_column or TYPE_COLUMN if is_typed else "",
        label_types=frozenset() if relations is None else relations.labelled_types,
        relations=relations,
    )
    if graph is None:
        return load_graph(config, quiet=True, reading=reading)
    return given_graph(graph, config, reading)


def _config(
    values: Mapping[str, Scalar], model: TrainedModel, *, is_table: bool, is_read_here: bool
) -> RunConfig:
    """Return how a graph is read: as that of the run was, by the recipe in its directory."""
    from retexo_fl.graph.recipes.recipe import RECIPE_NAME, named_recipe

    trained = config_values(model.config)
    given = dict(values)
    columns = {*OF_TABLES}
    # Of a graph of the other kind the labels may be called otherwise.
    others = set() if is_table == bool(model.config.nodes) else {"label-column"}
    kept = model.run / RECIPE_NAME
    if is_table:
        if is_read_here:
            given |= {"nodes": _NO_FILE, "edges": _NO_FILE}
        if model.recipe and given.get("features", AUTO_FEATURES) == AUTO_FEATURES:
            if not kept.exists():
                raise ConfigurationError(
                    f"features: missing; expected --features and the file of "
                    f"{named_recipe(model.recipe)}, which {model.run} does not hold"
                )
            given["features"] = str(kept)
    elif wrong := sorted(columns & given.keys()):
        raise ConfigurationError(f"{wrong[0]}: is for tables; expected them, or no such key")
    as_trained = [
        key for key in READING[1:] if key not in others and (is_table or key not in columns)
    ]
    return make_config(
        {
            **{key: trained[key] for key in as_trained},
            **given,
            "task": model.config.task,
            "split": model.config.split if model.config.goal.splits_nodes else AUTO,
        }
    )


def in_classes(graph: Graph, classes: tuple[str, ...]) -> Graph:
    """Return a graph whose classes are numbered as the model's are, by their names."""
    import numpy as np

    from retexo_fl.graph.checks import ArrayChecks
    from retexo_fl.graph.labels import counted_from_zero
    from retexo_fl.graph.recipes import FeatureRecipe

    if graph.recipe is not None and graph.recipe.columns:
        return graph
    checks = ArrayChecks(source=graph.name, error=DatasetError)
    named = graph.labels
    if graph.recipe is not None:
        named = np.array([*graph.recipe.classes, ""])[graph.labels]
    labels, _ = counted_from_zero(checks, "labels", named, known=classes)
    recipe = FeatureRecipe(classes=classes)
    return replace(graph, labels=labels, num_classes=len(classes), recipe=recipe)
