"""The manifest of a stored partition: what must lie beside it, to the byte."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, NoReturn

from retexo_fl.errors import PartitionError
from retexo_fl.relations import relations_of

MANIFEST_NAME: Final = "manifest.json"
#: Raised whenever the meaning of a stored byte changes. A part whose edges all weigh 1 and carry
#: nothing is written as version 1, one without types of nodes as version 2, which older readers
#: know, too.
PARTITION_VERSION: Final = 3
_VALUED_VERSION: Final = 2
_PLAIN_VERSION: Final = 1
#: A manifest is about 3 kB.
_MOST_BYTES: Final = 2**16
#: Sizes are exact in every JSON reader up to here.
_MOST: Final = 2**53
_SHA256: Final = re.compile(r"[0-9a-f]{64}")
_KEY_DTYPE: Final = re.compile(r"\|S[1-9][0-9]{0,5}")

#: An array's dtype, and its lengths as (size, how much longer).
_Form = tuple[str, tuple[tuple[str, int], ...]]
_KEYS: Final = "keys"
_COMMON: Final[Mapping[str, _Form]] = {
    "node_keys": (_KEYS, (("n", 0),)),
    "indptr": ("<i8", (("n", 1),)),
    "indices": ("<i4", (("e", 0),)),
    "boundary_keys": (_KEYS, (("b", 0),)),
    "boundary_owners": ("<i4", (("b", 0),)),
    "node_hashes": ("<u8", (("n", 0),)),
    "boundary_hashes": ("<u8", (("b", 0),)),
    "train_mask": ("|b1", (("n", 0),)),
    "val_mask": ("|b1", (("n", 0),)),
    "test_mask": ("|b1", (("n", 0),)),
}
#: Labels by their dtype: classes, several labels a node, numbers.
_LABELS: Final[Mapping[str, _Form]] = {
    "<i8": ("<i8", (("n", 0),)),
    "|i1": ("|i1", (("n", 0), ("L", 0))),
    "<f8": ("<f8", (("n", 0),)),
}
_DENSE: Final[Mapping[str, _Form]] = {"features": ("<f4", (("n", 0), ("F", 0)))}
_SPARSE: Final[Mapping[str, _Form]] = {
    "features_indptr": ("<i8", (("n", 1),)),
    "features_indices": ("<i4", (("z", 0),)),
    "features_data": ("<f4", (("z", 0),)),
}
#: Of version 2, either or both; with the second dimension where edges have a direction, or there
#: are channels.
_EDGES: Final[Mapping[str, _Form]] = {
    "edge_weights": ("<f4", (("e", 0),)),
    "edge_attributes": ("<f4", (("e", 0), ("A", 0))),
}
_DIRECTED_EDGES: Final[Mapping[str, _Form]] = {
    "edge_weights": ("<f4", (("e", 0), ("C", 0))),
    "edge_attributes": ("<f4", (("e", 0), ("C", 0), ("A", 0))),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredArray:
    """One ``NAME.npy`` file.

    Attributes:
        shape: Of the array.
        dtype: Of the array, in NumPy's notation with its byte order.
        sha256: Of the file, as hex digits.
        bytes: Size of the file.
    """

    shape: tuple[int, ...]
    dtype: str
    sha256: str
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The content of ``manifest.json`` but for its version.

    ``recipe`` is the digest of what made the features; it is left out where nothing did.
    ``relations`` is :attr:`.Relations.text`, likewise.
    """

    partitioning: str
    client: int
    num_clients: int
    num_classes: int
    num_features: int
    arrays: Mapping[str, StoredArray]
    recipe: str = ""
    relations: str = ""

    @property
    def num_channels(self) -> int:
        """How many weights each edge has side by side."""
        found = relations_of(self.relations)
        return 2 if found is None else found.num_channels

    @property
    def is_sparse(self) -> bool:
        """Whether the features are stored as CSR."""
        return "features" not in self.arrays

    @property
    def version(self) -> int:
        """The oldest version that can say all of this."""
        if self.relations:
            return PARTITION_VERSION
        return _VALUED_VERSION if _EDGES.keys() & self.arrays.keys() else _PLAIN_VERSION

    def to_json(self) -> str:
        """Return the text of the file."""
        values = asdict(self)
        for name in ("recipe", "relations"):
            if not values[name]:
                del values[name]
        return json.dumps({"version": self.version, **values}, indent=1) + "\n"


def read_manifest(path: Path) -> Manifest:
    """Read and check a manifest.

    Raises:
        PartitionError: It is missing, of another version, or anything but what
            :meth:`Manifest.to_json` writes.
    """
    values = _read_json(path)
    version = values.get("version")
    if type(version) is not int or not _PLAIN_VERSION <= version <= PARTITION_VERSION:
        _fail(
            path,
            f"version: got {_shown(version)}; expected {_PLAIN_VERSION} to {PARTITION_VERSION}",
        )
    recipe = _digest(path, "recipe", values.pop("recipe")) if "recipe" in values else ""
    relations = _relations(path, values.pop("relations")) if "relations" in values else ""
    _expect_keys(
        path, values, {"version", *Manifest.__dataclass_fields__} - {"recipe", "relations"}
    )
    arrays = values["arrays"]
    if not isinstance(arrays, dict):
        _fail(path, f"arrays: got {type(arrays).__name__}; expected an object")
    manifest = Manifest(
        partitioning=_text(path, "partitioning", values["partitioning"]),
        client=_whole(path, "client", values["client"]),
        num_clients=_whole(path, "num_clients", values["num_clients"]),
        num_classes=_whole(path, "num_classes", values["num_classes"]),
        num_features=_whole(path, "num_features", values["num_features"]),
        arrays={name: _stored_array(path, name, entry) for name, entry in arrays.items()},
        recipe=recipe,
        relations=relations,
    )
    if version != manifest.version:
        _fail(path, f"version: got {version} with these arrays; expected {manifest.version}")
    _check_layout(path, manifest)
    return manifest


def _read_json(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            content = file.read(_MOST_BYTES + 1)
    except FileNotFoundError as error:
        raise PartitionError(
            f"{path}: missing; expected a folder made by 'retexo partition'"
        ) from (error)
    except OSError as error:
        raise PartitionError(f"{path}: cannot be read ({error.strerror})") from error
    if len(content) > _MOST_BYTES:
        _fail(path, f"more than {_MOST_BYTES} bytes; expected a manifest")
    try:
        values = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise PartitionError(f"{path}: not JSON ({error})") from error
    if not isinstance(values, dict):
        _fail(path, f"got {type(values).__name__}; expected an object")
    return values


def _stored_array(path: Path, name: str, entry: object) -> StoredArray:
    where = f"arrays.{name}"
    if not isinstance(entry, dict):
        _fail(path, f"{where}: got {type(entry).__name__}; expected an object")
    _expect_keys(path, entry, set(StoredArray.__dataclass_fields__), where=where)
    shape = entry["shape"]
    if not isinstance(shape, list):
        _fail(path, f"{where}.shape: got {_shown(shape)}; expected a list")
    return StoredArray(
        shape=tuple(_whole(path, f"{where}.shape", length) for length in shape),
        dtype=_text(path, f"{where}.dtype", entry["dtype"]),
        sha256=_digest(path, f"{where}.sha256", entry["sha256"]),
        bytes=_whole(path, f"{where}.bytes", entry["bytes"]),
    )


def _check_layout(path: Path, manifest: Manifest) -> None:
    """Check that the arrays are those of a partition and that their lengths agree."""
    layout = {**_COMMON, **(_SPARSE if manifest.is_sparse else _DENSE)}
    weights = manifest.arrays.get("edge_weights")
    edges = _DIRECTED_EDGES if weights is not None and len(weights.shape) > 1 else _EDGES
    layout |= {name: form for name, form in edges.items() if name in manifest.arrays}
    _expect_keys(path, manifest.arrays, {*layout, "labels"}, where="arrays")
    layout["labels"] = _LABELS.get(manifest.arrays["labels"].dtype, _LABELS["<i8"])
    sizes = {"F": manifest.num_features, "L": manifest.num_classes, "C": manifest.num_channels}
    for name, (dtype, lengths) in layout.items():
        entry = manifest.arrays[name]
        fits = _KEY_DTYPE.fullmatch(entry.dtype) if dtype == _KEYS else entry.dtype == dtype
        if not fits:
            wanted = "|S and a width" if dtype == _KEYS else dtype
            _fail(path, f"arrays.{name}.dtype: got {entry.dtype[:40]!r}; expected {wanted}")
        if len(entry.shape) != len(lengths):
            _fail(path, f"arrays.{name}.shape: got {list(entry.shape)}; expected {len(lengths)}-d")
        for length, (size, more) in zip(entry.shape, lengths, strict=True):
            expected = sizes.setdefault(size, length - more) + more
            if length != expected:
                _fail(path, f"arrays.{name}.shape: got {list(entry.shape)}; expected {expected}")


def _expect_keys(
    path: Path, values: Mapping[str, object], expected: set[str], *, where: str = "keys"
) -> None:
    missing, extra = sorted(expected - set(values)), sorted(set(values) - expected)
    if missing:
        _fail(path, f"{where}: {missing[0]!r} is missing")
    if extra:
        _fail(path, f"{where}: {extra[0][:40]!r} is unknown")


def _whole(path: Path, key: str, value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _MOST:
        _fail(path, f"{key}: got {_shown(value)}; expected a whole number")
    return value


def _text(path: Path, key: str, value: object) -> str:
    if not isinstance(value, str):
        _fail(path, f"{key}: got {_shown(value)}; expected text")
    return value


def _relations(path: Path, value: object) -> str:
    text = _text(path, "relations", value)
    try:
        relations_of(text)
    except (ValueError, TypeError, RecursionError) as error:
        _fail(path, f"relations: {error}")
    return text


def _digest(path: Path, key: str, value: object) -> str:
    digest = _text(path, key, value)
    if not _SHA256.fullmatch(digest):
        _fail(path, f"{key}: got {digest[:80]!r}; expected 64 hex digits")
    return digest


def _shown(value: object) -> str:
    return repr(value)[:40]


def _fail(path: Path, problem: str) -> NoReturn:
    raise PartitionError(f"{path}: {problem}")
