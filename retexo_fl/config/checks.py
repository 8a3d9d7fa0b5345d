"""What configuration keys demand of each other."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from retexo_fl.algorithms import ALGORITHMS
from retexo_fl.config.goals import check_goal
from retexo_fl.config.keys import KeyInfo
from retexo_fl.config.value_forms import ALL_PUBLISHED, WITH_HEADS, shown
from retexo_fl.errors import ConfigurationError
from retexo_fl.methods.pieces.basis.keys import check_basis
from retexo_fl.methods.pieces.links.keys import check_links
from retexo_fl.methods.pieces.local_steps.keys import check_local_steps
from retexo_fl.methods.propagation.keys import check_propagation
from retexo_fl.methods.ridge.keys import check_ridge
from retexo_fl.units import counted

#: Keys that say where on this machine a graph lies.
DATA_PATH_KEYS: Final = ("partitions", "nodes", "edges", "data-dir", "features")
#: Value of ``features`` that makes a recipe of the table itself.
AUTO_FEATURES: Final = "auto"
#: Value of ``features`` by which a graph of any source is read without features.
NO_FEATURES: Final = "none"
#: Keys that say how tables of nodes and edges are read; a run without tables has none of them.
OF_TABLES: Final = (
    *("features", "key-column", "unlabelled-values"),
    *("source-column", "target-column", "weight-column", "time-column", "node-time-column"),
    "predicates",
    *("delimiter", "decimal", "encoding", "repeated-nodes"),
)
#: The one of these that is for any graph.
_OF_ANY_GRAPH: Final = ("features", NO_FEATURES)
#: Bits of a value in vectors that lie on one grid: below, small rows would be noise.
_GRID_BITS: Final = 8
#: Of two clients each knows the other's part of a sum.
_LEAST_MASKED: Final = 3


def check_alone(key: str, value: object, info: KeyInfo, wanted: type) -> None:
    """Check one value.

    Raises:
        ConfigurationError: It is of another type, or not one that the key allows.
    """
    if type(value) is not wanted:
        raise ConfigurationError(
            f"{key}: got {shown(value)} of type {type(value).__name__}; "
            f"expected {wanted.__name__}: {info.expected}"
        )
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigurationError(f"{key}: got {value!r}; expected a finite number")
    if not info.check(value):
        raise ConfigurationError(f"{key}: got {shown(value)}; expected {info.expected}")


def check_together(values: Mapping[str, Any]) -> None:
    """Check a configuration whose values are allowed one by one.

    Raises:
        ConfigurationError: Two keys contradict each other; the message names both.
    """
    _check_graph(values)
    if values["engine"] != "inline":
        _check_other_engine(values)
    if values["model"] in WITH_HEADS and values["hidden"] % values["heads"]:
        raise ConfigurationError(
            f"hidden: {values['hidden']} cannot be shared by "
            f"{counted(values['heads'], 'head')}; "
            "expected a multiple of heads"
        )
    if values["num-bases"] and values["model"] != "rel-gcn":
        raise ConfigurationError(
            f"num-bases: {values['num-bases']} does not go with model {shown(values['model'])}; "
            "expected 0, or model rel-gcn"
        )
    check_goal(values)
    _check_row_bits(values)
    _check_second_rows(values)
    _check_row_dp(values)
    for check in (check_propagation, check_local_steps, check_basis, check_ridge, check_links):
        check(values)
    if values["sampler"] in {"neighbour", "gns"}:
        _check_fanouts(values)
    if values["secure-aggregation"] == "masked":
        _check_masked(values)
    _check_quorum(values)
    _check_peering(values)
    if values["engine"] == "deployment":
        _check_deployed(values)


def _check_graph(values: Mapping[str, Any]) -> None:
    """Check what the graph is read from, and its split."""
    if bool(values["nodes"]) != bool(values["edges"]):
        absent, there = ("nodes", "edges") if values["edges"] else ("edges", "nodes")
        raise ConfigurationError(f"{absent}: missing; expected it beside {there}, or neither")
    if values["split"] == ALL_PUBLISHED:
        raise ConfigurationError(
            f"split: {ALL_PUBLISHED} is a run for each split that the graph brings; expected it in "
            "a sweep (`retexo sweep` takes the same keys), or published:COLUMN"
        )
    if values["label-types"] and values["task"] == "links":
        raise ConfigurationError(
            f"label-types: {shown(values['label-types'])} does not go with task links, which "
            "reads no labels; expected no such key"
        )
    for key in OF_TABLES:
        is_given = values[key] not in {"", "refuse"} and (key, values[key]) != _OF_ANY_GRAPH
        if is_given and not values["nodes"] and values["engine"] != "deployment":
            raise ConfigurationError(
                f"{key}: {shown(values[key])} is for a table of nodes; expected --nodes beside it"
            )

    is_here = values["engine"] != "deployment"
    if values["drop-columns"] and values["features"] != AUTO_FEATURES and is_here:
        raise ConfigurationError(
            f"drop-columns: {shown(values['drop-columns'])} does not go with features "
            f"{shown(values['features'])}; expected features auto, or `retexo features fit --drop`"
        )


def _check_other_engine(values: Mapping[str, Any]) -> None:
    """Refuse what only clients in one process can have."""
    engine = values["engine"]
    if values["links"] != "ideal":
        raise ConfigurationError(
            f"links: {shown(values['links'])} cannot be modelled by engine {engine}; "
            "expected ideal, or engine inline"
        )
    if values["memory-budget"] != "auto":
        raise ConfigurationError(
            f"memory-budget: {shown(values['memory-budget'])} cannot be kept by engine {engine}; "
            "expected auto, or engine inline"
        )


def _check_row_bits(values: Mapping[str, Any]) -> None:
    """Check what makes vectors smaller."""
    if values["row-bits"] < 32:
        for key, expected in (("algorithm", ("lazy",)), ("codec", ("lossless", "fixed"))):
            if values[key] not in expected:
                raise ConfigurationError(
                    f"row-bits: {values['row-bits']} does not go with {key} {values[key]}; "
                    f"expected 32, or {key} {' or '.join(expected)}"
                )
        if values["codec"] == "fixed" and values["row-bits"] != _GRID_BITS:
            raise ConfigurationError(
                f"row-bits: {values['row-bits']} does not go with codec fixed, whose values have "
                f"one grid for all rows; expected {_GRID_BITS} or 32"
            )


def _check_second_rows(values: Mapping[str, Any]) -> None:
    """Refuse what needs rows of peers after the first exchange, or lets links cross in it."""
    asked = values["second-rows"]
    if asked == "full":
        return
    tasks = ("classes",) if asked == "class" else ("classes", "multi-label", "regression")
    is_without = asked == "class" and values["task"] != "links"
    of_task = "whose nodes have no one class" if is_without else "which needs rows of both ends"
    for key, expected, why in (
        ("algorithm", ("lazy",), "whose rows cross in each round, or not at all"),
        ("task", tasks, of_task),
        ("solver", ("rounds",), "which needs its peers' sums"),
        ("boundary-plan", ("rows", "auto"), "which sends sums in place of single rows"),
    ):
        if values[key] not in expected:
            raise ConfigurationError(
                f"second-rows: {asked} does not go with {key} {values[key]}, {why}; expected full, "
                f"or {key} {' or '.join(expected)}"
            )
    if values["basis"] != "none" and values["basis-rows"] != "own":
        raise ConfigurationError(
            f"second-rows: {asked} does not go with basis-rows {values['basis-rows']}, by which "
            "the first rows would follow from links; expected full, or basis-rows own"
        )


def _check_row_dp(values: Mapping[str, Any]) -> None:
    """Refuse first rows of noised classes where other rows reveal more, or there are no classes."""
    if not values["row-dp"]:
        return
    for key, expected, why in (
        ("second-rows", "none", "whose later rows follow from features without noise"),
        ("basis", "supervised", "by whose coordinates nodes are put into classes"),
        ("task", "classes", "whose labels are no classes"),
    ):
        if values[key] != expected:
            raise ConfigurationError(
                f"row-dp: {values['row-dp']:g} does not go with {key} {values[key]}, {why}; "
                f"expected {key} {expected}, or row-dp 0"
            )


def _check_masked(values: Mapping[str, Any]) -> None:
    """Refuse what needs to know one client's numbers."""
    for key, expected, why in (
        ("aggregator", "mean", "which looks at each client's update"),
        ("local-correction", "none", "which the server keeps for each client"),
        ("per-client-metrics", False, "which each client would send in the clear"),
        ("missing-peers", "wait", "by which the server chooses what sums are of"),
        ("introductions", False, "which lets the server name keys of its own; write a roster file"),
    ):
        if values[key] != expected:
            raise ConfigurationError(
                f"secure-aggregation: masked does not go with {key} {shown(values[key])}, {why}; "
                f"expected {key} {str(expected).lower()}, or secure-aggregation none"
            )
    if values["algorithm"] == "central" or values["clients"] < _LEAST_MASKED:
        raise ConfigurationError(
            f"secure-aggregation: masked does not go with algorithm {values['algorithm']} and "
            f"clients {values['clients']}; expected {_LEAST_MASKED} clients at least, or "
            "secure-aggregation none"
        )
    if values["relay"] and values["codec"] != "dense":
        raise ConfigurationError(
            f"secure-aggregation: masked does not go with relay true and codec {values['codec']}, "
            "by whose lengths rows tell the server of their values; expected codec dense"
        )
    if 0 < values["min-clients"] < _LEAST_MASKED:
        raise ConfigurationError(
            f"secure-aggregation: masked does not go with min-clients {values['min-clients']}; "
            f"expected {_LEAST_MASKED} at least, since fewer hide nobody"
        )


def _check_fanouts(values: Mapping[str, Any]) -> None:
    """Check that samplers which draw for every layer have a number for each."""
    given, layers = len(str(values["fanouts"]).split("/")), values["layers"]
    if given != layers:
        raise ConfigurationError(
            f"fanouts: {shown(values['fanouts'])} has {counted(given, 'number')} for "
            f"{counted(layers, 'layer')}; expected one per layer with sampler "
            f"{values['sampler']}"
        )


def _check_quorum(values: Mapping[str, Any]) -> None:
    """Check the two keys that only mean something together."""
    least, deadline_s = values["min-clients"], values["round-deadline-s"]
    if bool(least) != bool(deadline_s):
        given, absent = "min-clients", "round-deadline-s"
        if deadline_s:
            given, absent = absent, given
        raise ConfigurationError(f"{absent}: got 0; expected a value above 0 with {given}")
    if least > values["clients"]:
        raise ConfigurationError(
            f"min-clients: got {least}; expected at most {values['clients']}, the number of clients"
        )


def _check_peering(values: Mapping[str, Any]) -> None:
    """Check what only clients on machines of their own need."""
    for key in ("introductions", "relay"):
        if values[key] and values["engine"] != "deployment":
            raise ConfigurationError(
                f"{key}: true does not go with engine {values['engine']}, whose clients are on one "
                "machine; expected engine deployment"
            )
    if values["relay"] and ALGORITHMS[values["algorithm"]].exchanges_in_rounds:
        raise ConfigurationError(
            f"relay: true does not go with algorithm {values['algorithm']}, whose clients exchange "
            "within a round; expected algorithm lazy, drop or central, or clients that can connect "
            "to each other"
        )


def _check_deployed(values: Mapping[str, Any]) -> None:
    """Refuse paths: each client's agent has its own part, and no other."""
    for key in DATA_PATH_KEYS:
        if values[key]:
            raise ConfigurationError(
                f"{key}: {shown(values[key])} does not go with engine deployment, whose agents "
                "hold the parts; expected no value"
            )
