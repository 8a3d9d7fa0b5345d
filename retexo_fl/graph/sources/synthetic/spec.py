"""``synthetic:nodes=10000,homophily=0.6`` and the like: the text and what it asks for."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from retexo_fl.errors import DatasetError
from retexo_fl.units import counted

SYNTHETIC: Final = "synthetic"


@dataclass(frozen=True, slots=True, kw_only=True)
class SyntheticSpec:
    """A graph that is asked for.

    Attributes:
        nodes: N.
        edges: E, undirected edges.
        classes: C.
        features: F.
        homophily: Share of the edges that join two nodes of one class.
        power: Exponent of the degrees' power law.
        words: Words in each node's bag (sparse features); 0 for dense features.
        signal: Dense: distance of a class's mean from the origin, in standard deviations of the
            noise. Sparse: share of words that come from the topic of the class.
        seed: Of everything that is drawn.
    """

    nodes: int
    edges: int
    classes: int
    features: int
    homophily: float
    power: float
    words: int
    signal: float
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Parameter:
    """One name of the text: what it takes by default and what is allowed."""

    default: float
    least: float
    most: float
    whole: bool = True

    @property
    def expected(self) -> str:
        kind = "a whole number" if self.whole else "a number"
        return f"{kind} from {self.least:,g} to {self.most:,.12g}"


_PARAMETERS: Final[Mapping[str, _Parameter]] = MappingProxyType(
    {
        "nodes": _Parameter(default=10_000, least=2, most=1e8),
        "degree": _Parameter(default=12.0, least=1e-3, most=1e6, whole=False),
        "edges": _Parameter(default=60_000, least=1, most=1e9),
        "classes": _Parameter(default=7, least=1, most=10_000),
        "features": _Parameter(default=64, least=1, most=1_000_000),
        "homophily": _Parameter(default=0.8, least=0.0, most=1.0, whole=False),
        "power": _Parameter(default=2.5, least=2.05, most=100.0, whole=False),
        "words": _Parameter(default=0, least=0, most=10_000),
        "signal": _Parameter(default=1.5, least=0.0, most=100.0, whole=False),
        "seed": _Parameter(default=0, least=0, most=2**31 - 1),
    }
)
#: Where features are words, ``signal`` is a share.
_SIGNAL_OF_WORDS: Final = 0.2

#: Sizes of two data sets whose files cannot be had everywhere. Counts: Hamilton, Ying, Leskovec
#: (NeurIPS 2017) in the form that PyTorch Geometric and DGL load, 114,615,892 directed edges; Hu et
#: al., Open Graph Benchmark (NeurIPS 2020), table 3. The homophily is near that of the originals.
PRESETS: Final[Mapping[str, Mapping[str, float]]] = MappingProxyType(
    {
        "reddit": MappingProxyType(
            {
                "nodes": 232_965,
                "edges": 57_307_946,
                "features": 602,
                "classes": 41,
                "homophily": 0.76,
            }
        ),
        "products": MappingProxyType(
            {
                "nodes": 2_449_029,
                "edges": 61_859_140,
                "features": 100,
                "classes": 47,
                "homophily": 0.81,
            }
        ),
    }
)
_NUMBER: Final = re.compile(r"[0-9]{1,12}(\.[0-9]{0,12})?|\.[0-9]{1,12}")
#: Characters of a refused text that an error repeats.
_MOST_SHOWN: Final = 40


def is_synthetic(name: str) -> bool:
    """Return whether a data set's name asks for a graph to be made."""
    return name == SYNTHETIC or name.startswith(f"{SYNTHETIC}:")


def parse_synthetic(name: str) -> SyntheticSpec:
    """Read ``synthetic``, ``synthetic:PRESET`` and ``synthetic:[PRESET,]NAME=VALUE,...``.

    Raises:
        DatasetError: A name is unknown, a value is not allowed, or no such graph exists.
    """
    items = [item for item in name.removeprefix(SYNTHETIC).removeprefix(":").split(",") if item]
    values: dict[str, float] = {}
    if items and "=" not in items[0]:
        values |= _preset(items.pop(0))
    # A preset has a mean degree, which stays when it is given another number of nodes.
    preset_degree = 2 * values.pop("edges") / values["nodes"] if "edges" in values else None
    given: dict[str, float] = {}
    for item in items:
        key, value = _assignment(item)
        if key in given:
            raise DatasetError(f"{SYNTHETIC}: {key} is given twice; expected it once")
        given[key] = value
    if {"degree", "edges"} <= given.keys():
        raise DatasetError(f"{SYNTHETIC}: got degree and edges; expected one of the two")
    values |= given
    if preset_degree is not None:
        values.setdefault("degree", preset_degree)
    spec = _settled(values)
    _check_room(spec)
    return spec


def _preset(text: str) -> dict[str, float]:
    if text not in PRESETS:
        raise DatasetError(
            f"{SYNTHETIC}: {text[:_MOST_SHOWN]!r} is unknown; expected one of "
            f"{', '.join(PRESETS)}, or NAME=VALUE with a name of {', '.join(_PARAMETERS)}"
        )
    return dict(PRESETS[text])


def _assignment(item: str) -> tuple[str, float]:
    key, equals, text = item.partition("=")
    if key not in _PARAMETERS or not equals:
        raise DatasetError(
            f"{SYNTHETIC}: {item[:_MOST_SHOWN]!r} is unknown; expected NAME=VALUE with a name of "
            f"{', '.join(_PARAMETERS)}"
        )
    parameter = _PARAMETERS[key]
    value = float(text) if _NUMBER.fullmatch(text) else math.nan
    if not parameter.least <= value <= parameter.most or (parameter.whole and value % 1):
        raise DatasetError(
            f"{SYNTHETIC}: {key}: got {text[:_MOST_SHOWN]!r}; expected {parameter.expected}"
        )
    return key, value


def _settled(values: Mapping[str, float]) -> SyntheticSpec:
    full = {key: parameter.default for key, parameter in _PARAMETERS.items()} | dict(values)
    edges = full["edges"] if "edges" in values else round(full["nodes"] * full["degree"] / 2)
    signal = full["signal"] if "signal" in values or not full["words"] else _SIGNAL_OF_WORDS
    return SyntheticSpec(
        nodes=int(full["nodes"]),
        edges=int(edges),
        classes=int(full["classes"]),
        features=int(full["features"]),
        homophily=full["homophily"],
        power=full["power"],
        words=int(full["words"]),
        signal=signal,
        seed=int(full["seed"]),
    )


def _check_room(spec: SyntheticSpec) -> None:
    """Refuse a graph whose classes have no room for its edges, each drawn once."""
    if spec.words and spec.signal > 1:
        raise DatasetError(f"{SYNTHETIC}: signal: got {spec.signal:g}; expected 0 to 1 with words")
    if spec.classes > spec.nodes // 2:
        raise DatasetError(
            f"{SYNTHETIC}: classes: got {spec.classes}; expected at most half of "
            f"{counted(spec.nodes, 'node')}"
        )
    if spec.edges < 1:
        raise DatasetError(f"{SYNTHETIC}: degree: gives no edge; expected at least one")
    small = spec.nodes // spec.classes
    within_pairs = spec.classes * small * (small - 1) // 2
    between_pairs = spec.nodes * (spec.nodes - 1) // 2 - within_pairs if spec.classes > 1 else 0
    within = round(spec.edges * spec.homophily)
    for kind, edges, pairs in (
        ("within classes", within, within_pairs),
        ("between classes", spec.edges - within, between_pairs),
    ):
        # Beyond half of all pairs, drawing distinct ones takes ever longer.
        if 2 * edges > pairs:
            raise DatasetError(
                f"{SYNTHETIC}: got {counted(edges, 'edge')} {kind}; expected at most {pairs // 2}, "
                "half the number of such pairs of nodes; change degree, nodes, classes or homophily"
            )
