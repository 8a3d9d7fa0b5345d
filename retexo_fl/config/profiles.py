"""Sets of keys that go together; each key may be chosen otherwise."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from retexo_fl.algorithms import ALGORITHMS
from retexo_fl.config.keys import Lean, Scalar
from retexo_fl.config.run_config import default_values, key_infos
from retexo_fl.errors import ConfigurationError

#: What algorithms have that train all layers together, if nothing else is asked for.
END_TO_END: Final = "end-to-end"
#: By name; ``retexo`` leaves how one trains at its default: a fixed number of Adam's rounds, and
#: ``one-shot`` has none. What a stage is tried as beside that, both choose by validation.
PROFILES: Final[Mapping[str, Mapping[str, Scalar]]] = MappingProxyType(
    {
        "retexo": MappingProxyType({"candidates": "own-row"}),
        "lean": MappingProxyType(
            {
                "rounds": 40,
                "patience": 10,
                "dropout": 0.0,
                "optimizer": "lbfgs",
                "warm-start": True,
                "candidates": "auto",
                "unlabelled-types": "refined",
                "floor": "one-shot",
                "basis": "supervised",
                "basis-blocks": 8,
                "basis-bits": 8,
                "row-bits": 8,
                "update-bits": 8,
                "weight-bits": 4,
                "boundary-plan": "auto",
            }
        ),
        "one-shot": MappingProxyType(
            {
                "solver": "ridge",
                "ridge-penalty": "validation",
                "basis": "supervised",
                "basis-rows": "sums",
                "basis-blocks": 2,
                "basis-bits": 8,
                "row-bits": 8,
                "weight-bits": 8,
            }
        ),
        END_TO_END: MappingProxyType({"rounds": 200, "patience": 50}),
    }
)
#: Those of lazy training.
LAZY_PROFILES: Final = tuple(name for name in PROFILES if name != END_TO_END)
#: What `retexo run` trains by where nothing else is asked for.
DEFAULT_PROFILE: Final = "lean"
#: Profiles of which some keys follow from the graph.
FITTED: Final = frozenset({"lean", END_TO_END})

_NONE: Final[Mapping[str, object]] = MappingProxyType({})

#: Rows are dense from this share of entries on; they say something in most of their directions.
_DENSE: Final = 0.5
_BLOCKS_OF_DENSE: Final = 32
#: Sparse rows cross once, where that takes no more than so many times what coordinates take: a
#: basis of own rows finds little where rows are noisy, and sums over neighbours are less so.
_ROWS_PER_COORDINATES: Final = 3
#: From this degree on, sums over neighbours are what a layer goes by.
_HIGH_DEGREE: Final = 30
#: Fewer train nodes, of fewer neighbours, ask for few coordinates of smoothed rows.
_FEW_NODES: Final = 1_000
_NODES_PER_FEATURE: Final = 0.5
_LOW_DEGREE: Final = 10
_SUMS: Final[Mapping[str, Scalar]] = MappingProxyType({"basis-rows": "sums"})
_FEW_SUMS: Final[Mapping[str, Scalar]] = MappingProxyType(
    {**_SUMS, "basis-blocks": 3, "weight-decay": 0.05, "patience": 4, "update-bits": 4}
)
#: The same few, end to end: hidden layers fit them exactly, so they are held back.
_FEW_END_TO_END: Final[Mapping[str, Scalar]] = MappingProxyType(
    {"dropout": 0.8, "weight-decay": 0.02}
)
#: Layers without sums read all of dense rows: L-BFGS fits these too well, Adam with dropout not.
_WHOLE_ROWS: Final[Mapping[str, Scalar]] = MappingProxyType(
    {"basis": "none", "optimizer": "adam", "dropout": 0.3, "rounds": 100, "patience": 20}
)
#: Of types, rows of few train nodes have few of the features; those two edges away more.
_FAR: Final[Mapping[str, Scalar]] = MappingProxyType({"basis-rows": "far"})
#: Where they are not the whole space, validation nodes are asked, too.
_CHOOSE: Final[Mapping[str, Scalar]] = MappingProxyType({"basis-rows": "choose"})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    """Trainings for which a profile has some keys otherwise, on any graph.

    Attributes:
        profile: Which.
        key: That decides whether a run is of the kind.
        is_of: Whether a value of it says so.
        values: What they have instead.
        unless: Not where a key is chosen that begins so, which would then say nothing.
    """

    profile: str = DEFAULT_PROFILE
    key: str
    is_of: Callable[[object], bool]
    values: Mapping[str, Scalar]
    unless: str = ""


#: Those of the default profile were found on validation nodes, as all of it
#: (docs/lean-training.md).
_KINDS: Final = (
    # Clients take the steps, and the server adds their mean change.
    _Kind(key="local-steps", is_of=lambda steps: steps != 1, values={"optimizer": "adam"}),
    # Its MLP of sums does not bear the noise of changes in few bits.
    _Kind(key="model", is_of=lambda model: model == "gin", values={"weight-bits": 32}),
    # Each relation has weights of its own, which fit few train nodes exactly.
    _Kind(
        key="model",
        is_of=lambda model: str(model).startswith("rel-"),
        values={"weight-decay": 0.01},
    ),
    # What else is tried counts right train nodes.
    _Kind(
        profile="retexo",
        key="update-dp",
        is_of=lambda epsilon: epsilon != 0,
        values={"candidates": "none", "secure-aggregation": "masked"},
    ),
    # A basis is sums of train nodes, too, which have noise: without one all of epsilon is for the
    # sums that the last layer is solved from.
    _Kind(
        profile="one-shot",
        key="update-dp",
        is_of=lambda epsilon: epsilon != 0,
        values={"basis": "none"},
        unless="basis-",
    ),
    _Kind(
        profile="one-shot",
        key="update-dp",
        is_of=lambda epsilon: epsilon != 0,
        values={"secure-aggregation": "masked"},
    ),
)
#: Values that go with the default profile beside each other, and not alone.
_TOGETHER: Final[tuple[Mapping[str, Scalar], ...]] = (
    {"model": "gcn", "layers": 3},
    {"model": "gcn", "layers": 4},
    {"model": "sage", "layers": 3},
)


#: Keys that the server may settle for clients: those of profiles, and what follows from counts.
SETTLED: Final = frozenset(
    {
        *(key for values in PROFILES.values() for key in values),
        *("basis-rows", "weight-decay"),
        *_FEW_SUMS,
        *_FEW_END_TO_END,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitting:
    """What of a run is left to be fitted to its graph.

    Attributes:
        profile: Of which keys follow from a graph; any other one, or none, has no such keys.
        chosen: Keys that the user chose, which stay.
        known: Keys as clients know them until the server sends others; None where they know the
            run's own.
    """

    profile: str = ""
    chosen: tuple[str, ...] = ()
    known: Mapping[str, Scalar] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphFacts:
    """Counts over all clients, which a federation may know before it trains.

    Attributes:
        nodes: N.
        edges: E, undirected.
        train_nodes: Labelled nodes to train on.
        features: F.
        classes: C.
        entries: Features other than zero, of all nodes.
        is_binary: They are all one.
    """

    nodes: int
    edges: int
    train_nodes: int
    features: int
    classes: int
    entries: int
    is_binary: bool

    @property
    def degree(self) -> float:
        """Mean number of neighbours."""
        return 2 * self.edges / self.nodes

    @property
    def entries_per_row(self) -> float:
        """Mean number of a node's features other than zero."""
        return self.entries / self.nodes

    @property
    def row_bytes(self) -> float:
        """About what a sparse row takes: a byte for each place, and four for its value."""
        return self.entries_per_row * (1 if self.is_binary else 5)


def default_profile(chosen: Mapping[str, object]) -> str:
    """Return the profile of a run that names none.

    Args:
        chosen: Its keys.
    """
    if not leaving(chosen):
        return DEFAULT_PROFILE
    known = ALGORITHMS.get(str(chosen.get("algorithm")))
    return END_TO_END if known is not None and known.end_to_end else "retexo"


def leaving(chosen: Mapping[str, object]) -> tuple[str, ...]:
    """Return which of the keys that were chosen leave the default profile, in their order.

    Each key says so where it is declared (:attr:`~retexo_fl.config.keys.KeyInfo.lean`): it was
    found to be as accurate as 100 rounds of Adam for each layer with the others.
    """
    own = {**default_values(), **profile_values(DEFAULT_PROFILE, chosen)}
    values = {**default_values(), **chosen}
    together = {key for pair in _TOGETHER if pair.items() <= values.items() for key in pair}
    return tuple(
        key
        for key in key_infos()
        if key in chosen.keys() - together and not _goes_with_default(key, chosen[key], own[key])
    )


def _goes_with_default(key: str, value: object, own: Scalar) -> bool:
    taken = key_infos()[key].lean
    if taken is Lean.ANY or value in {own, _FEW_SUMS.get(key, own)}:
        return True
    return isinstance(taken, tuple) and value in taken


def profile_values(name: str, chosen: Mapping[str, object] = _NONE) -> Mapping[str, Scalar]:
    """Return the keys of a profile.

    Args:
        name: Of the profile.
        chosen: Keys of the run, some of which the profile has others for.

    Raises:
        ConfigurationError: There is none of this name.
    """
    if name not in PROFILES:
        raise ConfigurationError(
            f"profile: got {name[:40]!r}; expected one of {', '.join(PROFILES)}"
        )
    of_kinds = kind_values(name, chosen).values()
    return {
        **PROFILES[name],
        **{key: value for values in of_kinds for key, value in values.items()},
    }


def kind_values(name: str, chosen: Mapping[str, object]) -> Mapping[str, Mapping[str, Scalar]]:
    """Return which keys a profile has otherwise for the kind of a training.

    Args:
        name: Of the profile.
        chosen: Keys of the run.

    Returns:
        By the chosen key that decides the kind.
    """
    found: dict[str, Mapping[str, Scalar]] = {}
    for kind in _KINDS:
        is_of = kind.profile == name and kind.key in chosen and kind.is_of(chosen[kind.key])
        if is_of and not (kind.unless and any(key.startswith(kind.unless) for key in chosen)):
            found[kind.key] = {**found.get(kind.key, {}), **kind.values}
    return found


def settled_keys(before: Mapping[str, Scalar], after: Mapping[str, Scalar]) -> Mapping[str, Scalar]:
    """Return the keys that clients have to get: those that were settled.

    Where it is shorter, ``profile`` names the one whose keys the others are added to.
    """

    def differing(profile: str) -> dict[str, Scalar]:
        name = {"profile": profile} if profile else {}
        had = with_settled(before, name)
        return name | {k: v for k, v in after.items() if k in SETTLED and v != had.get(k)}

    return min((differing(profile) for profile in ("", *PROFILES)), key=len)


def with_settled(before: Mapping[str, Scalar], settled: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """Return a run's keys after some were settled.

    Args:
        before: As clients know them.
        settled: As :func:`settled_keys` returns them.

    Raises:
        ConfigurationError: There is no profile of this name.
    """
    keys = dict(settled)
    name = str(keys.pop("profile", ""))
    return {**before, **(profile_values(name) if name else {}), **keys}


def fitted_values(
    name: str, facts: GraphFacts, *, takes_sums: bool, is_linear: bool, is_typed: bool = False
) -> Mapping[str, Scalar]:
    """Return the keys of a profile of :data:`FITTED` that differ on a graph from its others.

    Found on validation nodes (docs/lean-training.md, docs/algorithms.md).

    Args:
        name: Of the profile.
        facts: Of the graph.
        takes_sums: The model's first layer makes sums that a basis can be of.
        is_linear: It is linear in them: few coordinates were too few for the MLP of ``gin``.
        is_typed: It reads types of nodes.
    """
    assert name in FITTED
    few = min(_FEW_NODES, _NODES_PER_FEATURE * facts.features)
    is_few = facts.train_nodes < few and facts.degree < _LOW_DEGREE
    if name == END_TO_END:
        is_dense = facts.entries_per_row >= _DENSE * facts.features
        return _FEW_END_TO_END if is_few and not is_dense else {}
    if is_typed and facts.train_nodes < _NODES_PER_FEATURE * facts.features:
        return _FAR
    coordinates = int(PROFILES[name]["basis-blocks"]) * facts.classes
    sums = _CHOOSE if coordinates < facts.features else _SUMS
    if takes_sums and facts.degree >= _HIGH_DEGREE:
        return sums
    if facts.entries_per_row >= _DENSE * facts.features:
        return _of_dense(facts, takes_sums=takes_sums)
    if is_linear and is_few:
        return _FEW_SUMS
    # A byte each.
    is_cheap = facts.row_bytes <= _ROWS_PER_COORDINATES * coordinates
    return sums if is_linear and is_cheap else {}


def _of_dense(facts: GraphFacts, *, takes_sums: bool) -> Mapping[str, Scalar]:
    """Return what goes with dense rows: 32 blocks, or all of a space that has no more of them."""
    if _BLOCKS_OF_DENSE * facts.classes < facts.features:
        return {"basis-blocks": _BLOCKS_OF_DENSE}
    if not takes_sums:
        return _WHOLE_ROWS
    return {**_SUMS, "basis-blocks": max(2, -(-facts.features // facts.classes))}
