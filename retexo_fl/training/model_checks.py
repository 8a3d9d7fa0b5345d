"""What a model demands of a configuration and of a graph, in one line where it is not so."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from retexo_fl.config import RunConfig
from retexo_fl.errors import ConfigurationError
from retexo_fl.layers.base import GraphLayer, LayerShape
from retexo_fl.layers.named import layer_class
from retexo_fl.relations import Relations

#: Models that any typed graph goes with.
OVER_TYPES: Final = "rel-sage, rel-gcn or rel-gat"


def takes_types(model: str, *, has_types: bool) -> bool:
    """Return whether a model takes a graph whose nodes have types, or none."""
    directions = layer_class(model).directions
    return directions == "any" or has_types == (directions == "typed")


def relations_read(
    config: RunConfig, relations: Relations | None, inputs: int
) -> tuple[Relations | None, int | None]:
    """Return the relations of a graph where the model reads them, and all that is asked for can.

    Where edges are learned they are without types of labels, which nobody reads.

    Returns:
        Relations; the one whose edges are learned, a number. None and None without types.

    Raises:
        ConfigurationError: Types, or what is asked for, do not go with the model.
    """
    if not takes_types(config.model, has_types=relations is not None):
        has, expected = ("types", OVER_TYPES) if relations else ("no types", "sage")
        raise ConfigurationError(
            f"model: {config.model} does not go with a graph whose nodes have {has}; expected "
            f"{expected}"
        )
    labelled = frozenset() if relations is None else relations.labelled_types
    if config.label_types and config.asked_types != labelled:
        raise ConfigurationError(
            f"label-types: got {config.label_types[:60]!r}, but the parts have labels of "
            f"{' and '.join(sorted(labelled)) or 'no type'}; expected these, or no such key"
        )
    if relations is None:
        return None, predicted_relation(config, None)
    if relations.num_features != inputs:
        raise ConfigurationError(
            f"relations: types have {relations.num_features} columns; expected {inputs}"
        )
    if config.sampler != "none":
        raise ConfigurationError(
            f"sampler: {config.sampler} does not go with nodes of several types yet; expected none"
        )
    if not config.goal.splits_nodes:
        return replace(relations, with_labels=()), predicted_relation(config, relations)
    if not relations.with_labels:
        raise ConfigurationError(
            "labels: no type of nodes has any; expected labels of a type, or task links"
        )
    return relations, None


def taught_types(config: RunConfig, relations: Relations | None) -> tuple[int, ...]:
    """Return the types without labels whose weights are trained by the labels of other nodes.

    That takes a layer whose input is fixed while it is trained, and one type with labels.
    """
    if (
        config.unlabelled_types == "drawn"
        or relations is None
        or not config.goal.splits_nodes
        or len(relations.with_labels) != 1
        or config.layers < 2
        or not takes_fixed_rows(config)
    ):
        return ()
    return relations.read_by(relations.with_labels)


def takes_fixed_rows(config: RunConfig) -> bool:
    """Return whether what a layer over types reads is fixed, and of a width for each type."""
    crosses = layer_class(config.model).crossing_width(LayerShape(inputs=1, outputs=1, hidden=1))
    return crosses is not None and not config.num_bases


def predicted_relation(config: RunConfig, relations: Relations | None) -> int | None:
    """Return the relation whose edges are learned, a number; None where that is not of types.

    Raises:
        ConfigurationError: As :func:`relation_named`.
    """
    if relations is not None and config.goal.splits_nodes:
        return None
    return relation_named(config.relation, relations)


def relation_named(asked: str, relations: Relations | None) -> int | None:
    """Return the relation of a name, a number, or the only one if none is given; None without any.

    Raises:
        ConfigurationError: It is not there, or is one of several.
    """
    if relations is None:
        if asked:
            raise ConfigurationError(
                f"relation: {asked[:60]!r} does not go with a graph whose nodes have no types; "
                "expected no value"
            )
        return None
    names = [one.name for one in relations.relations]
    full = [
        f"{relations.types[one.source]}/{one.name}/{relations.types[one.target]}"
        for one in relations.relations
    ]
    found = [
        place for place, both in enumerate(zip(names, full, strict=True)) if asked in {"", *both}
    ]
    if len(found) != 1:
        told = [name if names.count(name) == 1 else f for name, f in zip(names, full, strict=True)]
        raise ConfigurationError(
            f"relation: got {asked[:60]!r}; expected the one whose edges are to be learned: "
            f"{', '.join(told)}"
        )
    return found[0]


def check_directed_links(
    config: RunConfig, relations: Relations | None, predicted: int | None
) -> bool:
    """Return whether edges that are learned have directions; each embedding has two halves then.

    Raises:
        ConfigurationError: They have, and there is no half of ``hidden``.
    """
    if config.goal.splits_nodes:
        return False
    if relations is None or predicted is None:
        has_directions = layer_class(config.model).directions == "directed"
    else:
        has_directions = relations.relations[predicted].has_directions
    if has_directions and config.hidden % 2:
        raise ConfigurationError(
            f"hidden: {config.hidden} has no half, of which one is of where links with directions "
            "begin, and one of where they end; expected an even number"
        )
    return has_directions


def check_second_rows(
    config: RunConfig, relations: Relations | None, *, is_structural: bool
) -> None:
    """Refuse rows that cross once where what crosses first follows from edges, or has types.

    Raises:
        ConfigurationError: Nodes have types, or no features of their own.
    """
    if config.second_rows == "full":
        return
    if relations is not None:
        raise ConfigurationError(
            f"second-rows: {config.second_rows} does not go with a graph whose nodes have types "
            "yet; expected full"
        )
    if is_structural:
        raise ConfigurationError(
            f"second-rows: {config.second_rows} does not go with nodes without features, for which "
            "columns of their edges would cross; expected full, or features"
        )


def check_basis_rows(config: RunConfig) -> None:
    """Refuse a basis of sums that the first layer does not make."""
    layer = layer_class(config.model)
    if config.basis_rows == "far" and layer.directions != "typed":
        raise ConfigurationError(
            f"basis-rows: far does not go with model {config.model}, which reads no types; "
            "expected own, sums or choose, or a model as rel-sage"
        )
    if config.basis_rows != "own" and layer.directions != "typed" and layer.fixed_width(1) is None:
        raise ConfigurationError(
            f"basis-rows: {config.basis_rows} does not go with model {config.model}, whose first "
            "layer makes no fixed sums of features; expected own, or a model as gcn, sage, gin"
        )


def check_solved(config: RunConfig, relations: Relations | None) -> None:
    """Refuse to solve for layers that are more than linear in fixed sums, or for several types."""
    if not is_solvable(config.model):
        raise ConfigurationError(
            f"solver: ridge does not go with model {config.model}, which is not linear in fixed "
            "sums of features; expected rounds, or a model as gcn, sage, rel-sage"
        )
    if relations is None:
        return
    if config.num_bases:
        raise ConfigurationError(
            f"solver: ridge does not go with num-bases {config.num_bases}, since relations share "
            "no matrices then; expected num-bases 0, or rounds"
        )
    if len(relations.with_labels) > 1:
        kinds = ", ".join(relations.types[kind] for kind in relations.with_labels)
        raise ConfigurationError(
            f"solver: ridge does not go with labels of several types ({kinds}); expected "
            "label-types with one of them, or rounds"
        )


def is_solvable(model: str) -> bool:
    """Return whether a layer is linear in fixed sums of features."""
    layer = layer_class(model)
    width = layer.fixed_width(1)
    if layer.directions == "typed":
        width = layer.crossing_width(LayerShape(inputs=1, outputs=1, hidden=1))
    return width is not None and layer.start_as is not GraphLayer.start_as
