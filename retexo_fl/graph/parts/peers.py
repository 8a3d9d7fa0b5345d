"""What all clients of a partitioning agree on before any of them makes its part: a TOML file."""

from __future__ import annotations

import difflib
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NoReturn

import numpy as np
import tomli_w
from scipy.sparse import csr_array

from retexo_fl.errors import ConfigurationError
from retexo_fl.files import read_toml
from retexo_fl.graph.labels import CLASSES, KINDS, LabelKind
from retexo_fl.graph.parts.partition import PARTITIONING_DIGITS, GraphPartition
from retexo_fl.graph.recipes.recipe import FeatureRecipe, named_recipe
from retexo_fl.relations import Relation, Relations
from retexo_fl.units import counted

#: The name that the file has beside parts on disk.
PEERS_NAME: Final = "peers.toml"
_MOST_NAME: Final = 200
_MOST_SIZE: Final = 2**31 - 1
#: Names that a misspelt one is compared with.
_MOST_COMPARED: Final = 10_000
_KEYS: Final = (
    *("partitioning", "classes", "features", "sparse-features", "recipe", "class-names"),
    *("task", "edges-are", "edge-features", "types", "labelled", "relations", "clients"),
)
_OPTIONAL: Final = (
    *("sparse-features", "recipe", "class-names", "task", "edges-are", "edge-features"),
    *("types", "labelled", "relations"),
)
_OF_TYPES: Final = ("types", "labelled", "relations")
_DIRECTED: Final = "directed"
#: What is said in the place of a key that does not go with types.
_INSTEAD: Final = {"features": ", of which each says its own"}
_EDGES_ARE: Final = ("undirected", _DIRECTED)
_DIGITS: Final = re.compile(rf"[0-9a-f]{{{PARTITIONING_DIGITS}}}")
_HEADING: Final = (
    "# What all clients of this partitioning agree on; the same file at every client.\n"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Peers:
    """The content of a peers file.

    Attributes:
        source: The file, for errors.
        clients: Names by client index.
        num_classes: Outputs of a model: C classes of the whole graph, L labels, or one number.
        num_features: F of every client.
        sparse_features: Whether parts store their features as CSR.
        partitioning: 64 hex digits that all parts carry.
        recipe: 64 hex digits of the feature recipe of all parts; empty for none, or any.
        labels: What labels are; they are read.
        directed: Whether edges have a direction.
        num_edge_features: Attributes of each edge.
        class_names: Names of the classes where no recipe makes features: whole numbers that do not
            count from 0.
        relations: Types of nodes and relations between them; None without.
        type_widths: Of each type, how many features its nodes have; 0 for a type without any, which
            has one column all the same.
    """

    source: str
    clients: tuple[str, ...]
    num_classes: int
    num_features: int
    sparse_features: bool
    partitioning: str
    recipe: str = ""
    labels: LabelKind = CLASSES
    directed: bool = False
    num_edge_features: int = 0
    class_names: tuple[str, ...] = ()
    relations: Relations | None = None
    type_widths: tuple[int, ...] = ()

    def has_sides(self, relation: int) -> bool:
        """Return whether it makes a difference from which end the edges of a relation come."""
        if self.relations is None:
            return self.directed
        return not self.relations.relations[relation].symmetric

    def index_of(self, name: str) -> int:
        """Return a client's index.

        Raises:
            ConfigurationError: There is no client of that name; the message names the nearest.
        """
        if name in self.clients:
            return self.clients.index(name)
        near = difflib.get_close_matches(name, self.clients[:_MOST_COMPARED], n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ConfigurationError(
            f"name: {name[:_MOST_NAME]!r} is not one of the "
            f"{counted(len(self.clients), 'client')} in {self.source}{hint}"
        )

    @property
    def recipe_of_classes(self) -> FeatureRecipe | None:
        """What names classes, where no recipe makes features."""
        return FeatureRecipe(classes=self.class_names) if self.class_names else None

    def check_recipe(self, recipe: FeatureRecipe | None) -> None:
        """Check that a client's feature recipe is the one that is agreed on.

        Raises:
            ConfigurationError: It is another, or makes other features or classes, or labels of
                another task.
        """
        digest = "" if recipe is None else recipe.digest
        if self.recipe and digest != self.recipe:
            raise ConfigurationError(
                f"features: {named_recipe(digest)} was given; expected "
                f"{named_recipe(self.recipe)}, as in {self.source}"
            )
        if recipe is None or not recipe.columns:
            return
        recipe.check_labels(self.labels)
        agreed_types = [] if self.relations is None else [*self.relations.types]
        if (made_types := [kind for kind, _ in recipe.types]) != agreed_types:
            raise ConfigurationError(
                f"features: {named_recipe(digest)} is of types {', '.join(made_types) or 'none'}; "
                f"expected {', '.join(agreed_types) or 'none'}, as in {self.source}"
            )
        made_classes = len(recipe.classes) if self.labels.are_classes else 0
        for key, agreed, made in (
            ("features", self.num_features, recipe.num_features),
            ("classes", self.num_classes, made_classes or self.num_classes),
        ):
            if agreed != made:
                raise ConfigurationError(
                    f"{self.source}: {key}: got {agreed}; expected {made}, as "
                    f"{named_recipe(digest)} makes"
                )

    def to_toml(self) -> str:
        """Return the text of the file."""
        features: dict[str, Any] = {"features": self.num_features}
        if self.relations is not None:
            features = _types_of(self.relations, self.type_widths)
        values = {
            "partitioning": self.partitioning,
            "classes": self.num_classes,
            **features,
            "sparse-features": self.sparse_features,
            **({"class-names": list(self.class_names)} if self.class_names else {}),
            **({"recipe": self.recipe} if self.recipe and not self.class_names else {}),
            **self.labels.key,
            **({"edges-are": _DIRECTED} if self.directed else {}),
            **({"edge-features": self.num_edge_features} if self.num_edge_features else {}),
            "clients": list(self.clients),
        }
        return _HEADING + tomli_w.dumps(values)


def peers_of(parts: Sequence[GraphPartition]) -> Peers:
    """Return the peers file of parts that were cut from a whole graph.

    Args:
        parts: All parts, in client order; clients are called ``client-0``, ``client-1``, ...
    """
    first = parts[0]
    relations, is_directed = first.relations, first.edge_values.is_directed
    if relations is not None:
        # Of edges between two types the relation says which end is the source.
        is_directed = any(
            one.source == one.target and not one.symmetric for one in relations.relations
        )
    return Peers(
        source=PEERS_NAME,
        clients=tuple(f"client-{part.client}" for part in parts),
        num_classes=first.num_classes,
        num_features=first.num_features,
        sparse_features=not isinstance(first.features, np.ndarray),
        partitioning=first.partitioning,
        recipe=first.recipe_digest,
        class_names=(() if first.recipe is None or first.recipe.columns else first.recipe.classes),
        labels=first.label_kind,
        directed=is_directed,
        num_edge_features=first.edge_values.num_attributes,
        relations=relations,
        type_widths=() if relations is None else _widths_of(parts, relations),
    )


def _widths_of(parts: Sequence[GraphPartition], relations: Relations) -> tuple[int, ...]:
    """Return how many features types have; a single column of ones at all nodes is none."""
    return tuple(
        0 if width == 1 and _is_one(parts, relations, kind) else width
        for kind, width in enumerate(relations.widths)
    )


def _is_one(parts: Sequence[GraphPartition], relations: Relations, kind: int) -> bool:
    """Return whether the only column of a type is 1 at all of its nodes."""
    column = relations.columns(kind)
    held = [part.features[:, column][part.kinds == kind] for part in parts]
    values = [one.toarray() if isinstance(one, csr_array) else one for one in held]
    return all(bool((one == 1).all()) for one in values)


def _types_of(relations: Relations, widths: Sequence[int]) -> dict[str, Any]:
    types = [
        {"name": name, "features": width}
        for name, width in zip(relations.types, widths, strict=True)
    ]
    joined = [
        {
            "source": relations.types[one.source],
            "name": one.name,
            "target": relations.types[one.target],
        }
        for one in relations.relations
    ]
    found: dict[str, Any] = {"types": types}
    if labelled := [relations.types[kind] for kind in relations.with_labels]:
        # One type by its name, as before there were several.
        found["labelled"] = labelled[0] if len(labelled) == 1 else labelled
    return {**found, "relations": joined}


def read_peers(path: Path) -> Peers:
    """Read a peers file.

    Its ``partitioning`` is 64 hex digits, or any other text: then the digits are the SHA-256 of
    the file's content, without its comments and its layout.

    Raises:
        ConfigurationError: It cannot be read, is not TOML, or a key is missing, unknown or not as
            documented; one line names file and key.
    """
    values = read_toml(path)
    _check_keys(path, values)
    relations, widths = _relations(path, values)
    is_mixed = relations is not None and (len(widths) > 1 or not widths[0])
    agreed = {
        "partitioning": values["partitioning"],
        "classes": _whole(path, "classes", values["classes"]),
        "sparse-features": values.get("sparse-features", is_mixed),
        "clients": _names(path, values["clients"]),
    }
    if relations is None:
        agreed["features"] = _whole(path, "features", values["features"])
    else:
        agreed |= {key: values[key] for key in _OF_TYPES if key in values}
    agreed |= _labels_and_recipe(path, values) | _edges(path, values)
    name, sparse = agreed["partitioning"], agreed["sparse-features"]
    if not isinstance(name, str) or not name:
        _fail(path, "partitioning", name, "a name, or 64 hex digits")
    if not isinstance(sparse, bool):
        _fail(path, "sparse-features", sparse, "true or false")
    if is_mixed and not sparse:
        _fail(path, "sparse-features", sparse, "true, since types have columns of their own")
    return Peers(
        source=str(path),
        clients=tuple(values["clients"]),
        num_classes=values["classes"],
        num_features=values["features"] if relations is None else relations.num_features,
        sparse_features=sparse,
        partitioning=name if _DIGITS.fullmatch(name) else _digest(agreed),
        recipe=agreed.get("recipe", ""),
        class_names=tuple(values.get("class-names", ())),
        labels=_labels(path, values),
        directed=values.get("edges-are") == _DIRECTED,
        num_edge_features=values.get("edge-features", 0),
        relations=relations,
        type_widths=widths,
    )


def _relations(path: Path, values: Mapping[str, Any]) -> tuple[Relations | None, tuple[int, ...]]:
    """Return the types and relations, and how many features each type has."""
    if not {*_OF_TYPES} & values.keys():
        return None, ()
    for key in ("features", "edge-features"):
        if key in values:
            _fail(path, key, values[key], f"none with types{_INSTEAD.get(key, '')}")
    types = _tables(path, "types", values["types"], {"name": str, "features": int})
    names = [one["name"] for one in types]
    widths = tuple(one["features"] for one in types)
    for name, width in zip(names, widths, strict=True):
        if width < 0:
            _fail(path, f"types: {name}: features", width, "how many there are, 0 for none")
    labelled = values.get("labelled", [])
    listed = labelled if isinstance(labelled, list) else [labelled]
    if not all(name in names for name in listed) or len({*listed}) < len(listed):
        _fail(path, "labelled", labelled, f"one of the types {', '.join(names)}, or a list of them")
    relations = Relations(
        types=tuple(names),
        widths=tuple(max(width, 1) for width in widths),
        relations=_joining(path, values, names),
        with_labels=tuple(sorted(map(names.index, listed))),
    )
    if problem := next(relations.problems(), None):
        raise ConfigurationError(f"{path}: types: {problem}")
    return relations, widths


def _joining(path: Path, values: Mapping[str, Any], names: list[str]) -> tuple[Relation, ...]:
    """Return the relations between types of some names."""
    form: dict[str, type] = dict.fromkeys(("source", "name", "target"), str)
    found = []
    for one in _tables(path, "relations", values["relations"], form):
        for end in ("source", "target"):
            if one[end] not in names:
                _fail(
                    path,
                    f"relations: {one['name']}: {end}",
                    one[end],
                    f"one of the types {', '.join(names)}",
                )
        source, target = names.index(one["source"]), names.index(one["target"])
        symmetric = source == target and values.get("edges-are") != _DIRECTED
        found.append(Relation(source, one["name"], target, symmetric))
    return tuple(found)


def _tables(
    path: Path, key: str, value: object, form: Mapping[str, type]
) -> Sequence[Mapping[str, Any]]:
    """Return tables of some keys, of which each is of a type."""
    expected = f"tables [[{key}]] with {', '.join(form)}"
    if not isinstance(value, list) or not value:
        _fail(path, key, value, expected)
    for one in value:
        if not isinstance(one, dict) or one.keys() != form.keys():
            _fail(path, key, one, expected)
        for name, kind in form.items():
            if type(one[name]) is not kind:
                what = "a text" if kind is str else "a whole number"
                _fail(path, f"{key}: {name}", one[name], what)
    return value


def _labels_and_recipe(path: Path, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is agreed on beside the sizes; what older files cannot say is not in a digest."""
    agreed = {}
    if "recipe" in values:
        agreed["recipe"] = recipe = values["recipe"]
        if not isinstance(recipe, str) or not _DIGITS.fullmatch(recipe):
            _fail(path, "recipe", recipe, "64 hex digits, the digest of a feature recipe")
    if "class-names" in values:
        agreed["recipe"] = _recipe_of_names(path, values).digest
    return agreed | _labels(path, values).key


def _labels(path: Path, values: Mapping[str, Any]) -> LabelKind:
    """Return what labels are."""
    task = values.get("task", CLASSES.name)
    if task not in KINDS:
        _fail(path, "task", task, f"one of {', '.join(KINDS)}")
    labels = KINDS[task]
    if labels.width not in {None, values["classes"]}:
        _fail(path, "classes", values["classes"], f"{labels.width} with task {task}")
    return labels


def _recipe_of_names(path: Path, values: Mapping[str, Any]) -> FeatureRecipe:
    """Return the recipe that names classes alone."""
    names, expected = values["class-names"], "the numbers of all classes as texts, ascending"
    if "recipe" in values:
        _fail(path, "class-names", names, "none beside recipe, which names them")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        _fail(path, "class-names", names, expected)
    if len(names) != values["classes"] or len(names) < 2:
        _fail(path, "class-names", names, f"as many as classes, {values['classes']}, at least two")
    recipe = FeatureRecipe(classes=tuple(names))
    if not recipe.has_numbered_classes or names != sorted({*names}, key=int):
        _fail(path, "class-names", names, expected)
    return recipe


def _edges(path: Path, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is agreed on about edges; what is absent is not in the digest of older files."""
    agreed = {}
    if "edges-are" in values:
        agreed["edges-are"] = values["edges-are"]
        if values["edges-are"] not in _EDGES_ARE:
            _fail(path, "edges-are", values["edges-are"], " or ".join(_EDGES_ARE))
    if "edge-features" in values:
        agreed["edge-features"] = _whole(path, "edge-features", values["edge-features"])
    return agreed


def _check_keys(path: Path, values: Mapping[str, Any]) -> None:
    demanded = [key for key in _KEYS if key not in _OPTIONAL]
    if {*_OF_TYPES} & values.keys():
        demanded = ["types", "relations", *(key for key in demanded if key != "features")]
    missing = [key for key in demanded if key not in values]
    if missing:
        raise ConfigurationError(f"{path}: {missing[0]}: missing; expected {', '.join(_KEYS)}")
    unknown = sorted(values.keys() - set(_KEYS))
    if unknown:
        raise ConfigurationError(
            f"{path}: {unknown[0][:60]}: unknown key; expected {', '.join(_KEYS)}"
        )


def _digest(agreed: Mapping[str, Any]) -> str:
    """Return the SHA-256 of what is agreed on: JSON with sorted keys, ASCII, no spaces."""
    content = json.dumps(agreed, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(content.encode("ascii")).hexdigest()


def _names(path: Path, value: object) -> list[str]:
    if not isinstance(value, list) or not value:
        _fail(path, "clients", value, "a list of names, in the order of the clients")
    seen: set[str] = set()
    for name in value:
        if not isinstance(name, str) or not name.isprintable() or not 0 < len(name) <= _MOST_NAME:
            _fail(path, "clients", name, f"printable names of at most {_MOST_NAME} characters")
        if name in seen:
            _fail(path, "clients", name, "each name once")
        seen.add(name)
    return value


def _whole(path: Path, key: str, value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= _MOST_SIZE:
        _fail(path, key, value, f"a whole number from 1 to {_MOST_SIZE}")
    return value


def _fail(path: Path, key: str, value: object, expected: str) -> NoReturn:
    text = repr(value)
    shown = text if len(text) <= 60 else f"{text[:60]}..."
    raise ConfigurationError(f"{path}: {key}: got {shown}; expected {expected}")
