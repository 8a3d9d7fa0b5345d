"""A trained layer on disk: a safetensors file with what it is for and a check that it is whole."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from safetensors.numpy import load, save

from retexo_fl.errors import CheckpointError
from retexo_fl.federation.checkpoints import (
    checksum,
    metadata_of,
    named_damage,
    replace_file,
)
from retexo_fl.relations import is_text_of_relations

#: Raised when the meaning of a layer file's content changes.
LAYER_VERSION: Final = 1
#: The only key of the file's metadata: safetensors orders several keys at random, and files of
#: equal layers are equal in their bytes.
_KEY: Final = "retexo"


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerFacts:
    """What the tensors of a layer do not hold.

    Attributes:
        stage: Stage index; 0 for a basis.
        features: Width of the input features that the model was trained on.
        classes: Number of classes, or of labels; 1 of numbers.
        recipe: Digest of the recipe that made the input features; empty, and not in the file,
            without one.
        label_facts: Of a regression, mean and scale of the labels that it was trained on; else
            empty, and not in the file.
        edge_features: Attributes of edges that it reads; not in the file where there are none.
        is_structural: Input features are made of the edges; not in the file where they are not.
        relations: Types of nodes and relations that it reads (:attr:`.Relations.text`); likewise.
    """

    stage: int
    features: int
    classes: int
    recipe: str = ""
    label_facts: tuple[float, ...] = ()
    edge_features: int = 0
    is_structural: bool = False
    relations: str = ""

    def values(self) -> dict[str, Any]:
        """Return them as a file has them: without what is empty."""
        values = asdict(self)
        for name in ("recipe", "label_facts", "edge_features", "is_structural", "relations"):
            if not values[name]:
                del values[name]
        return values


def layer_path(run: Path, stage: int) -> Path:
    """Return where a run keeps the layer of a stage."""
    return run / "model" / f"layer-{stage}.safetensors"


def refined_path(run: Path, layer: int) -> Path:
    """Return where a run keeps a layer that was trained together with another one at the end."""
    return run / "model" / f"refined-{layer}.safetensors"


def floor_path(run: Path) -> Path:
    """Return where a run keeps the last layer that is solved for, where that is kept."""
    return run / "model" / "floor.safetensors"


def basis_path(run: Path) -> Path:
    """Return where a run keeps the basis of its input features."""
    return run / "model" / "basis.safetensors"


def columns_path(run: Path) -> Path:
    """Return where a run keeps what makes its input features of columns of the edges."""
    return run / "model" / "columns.safetensors"


def write_layer_file(path: Path, facts: LayerFacts, tensors: Mapping[str, np.ndarray]) -> None:
    """Put a layer at ``path`` as a whole.

    Raises:
        CheckpointError: It could not be written.
    """
    tensors = {name: np.ascontiguousarray(item) for name, item in tensors.items()}
    text = _text({"version": LAYER_VERSION, **facts.values()})
    metadata = {_KEY: _text({"facts": text, "crc32": checksum(text, tensors)})}
    replace_file(path, save(tensors, metadata=metadata))


def read_basis_file(path: Path) -> tuple[LayerFacts, np.ndarray]:
    """Read what a run's features are mapped by, in the form in which it travels.

    Raises:
        CheckpointError: The file is missing, damaged, or holds no basis.
    """
    return read_flat_file(path, "basis")


def read_flat_file(path: Path, name: str) -> tuple[LayerFacts, np.ndarray]:
    """Read the one flat array of a name that a file holds.

    Raises:
        CheckpointError: The file is missing, damaged, or holds anything else.
    """
    facts, tensors = read_layer_file(path)
    if set(tensors) != {name} or tensors[name].ndim != 1:
        raise CheckpointError(f"{path}: holds {sorted(tensors)}; expected one flat {name}")
    return facts, tensors[name]


def read_layer_file(path: Path) -> tuple[LayerFacts, dict[str, np.ndarray]]:
    """Read what :func:`write_layer_file` wrote.

    Raises:
        CheckpointError: The file is missing, damaged or of another version.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror})") from error
    with named_damage(path, "damaged, or not a layer of a run"):
        tensors = load(content)
        stored = json.loads(metadata_of(content)[_KEY])
        values = json.loads(stored["facts"])
        intact = stored["crc32"] == checksum(stored["facts"], tensors)
        version = values.pop("version")
    if not intact:
        raise CheckpointError(f"{path}: damaged (its checksum does not fit its content)")
    if version != LAYER_VERSION:
        raise CheckpointError(f"{path}: of another version; expected {LAYER_VERSION}")
    recipe, facts = values.pop("recipe", ""), values.pop("label_facts", [])
    relations = values.pop("relations", "")
    values.setdefault("edge_features", 0)
    is_structural = values.pop("is_structural", False)
    if (
        set(values) != {"stage", "features", "classes", "edge_features"}
        or not all(type(value) is int and value >= 0 for value in values.values())
        or not isinstance(recipe, str)
        or type(is_structural) is not bool
        or not is_text_of_relations(relations)
        or not isinstance(facts, list)
        or not all(type(fact) is float and math.isfinite(fact) for fact in facts)
    ):
        raise CheckpointError(f"{path}: damaged (expected numbers of stage, features and classes)")
    told = LayerFacts(
        **values,
        recipe=recipe,
        label_facts=tuple(facts),
        is_structural=is_structural,
        relations=relations,
    )
    return told, tensors


def _text(values: Mapping[str, Any]) -> str:
    return json.dumps(values, sort_keys=True)
