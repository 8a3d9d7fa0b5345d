"""What configuration keys demand of each other."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from retexo_fl.algorithms import ALGORITHMS
from retexo_fl.config.goals import AUTO, check_goal
from retexo_fl.config.keys import KeyInfo
from retexo_fl.errors import ConfigurationError
from retexo_fl.units import counted

#: Keys that say where on this machine a graph lies.
DATA_PATH_KEYS: Final = ("partitions", "nodes", "edges", "data-dir", "features")
#: Value of ``features`` that makes a recipe of the table itself.
AUTO_FEATURES: Final = "auto"
#: What says how tables of nodes and edges are read, and what stands for nothing of it.
OF_TABLES: Final = (
    *("features", "key-column", "label-column", "unlabelled-values"),
    *("source-column", "target-column", "weight-column", "time-column"),
    *("delimiter", "decimal", "encoding", "repeated-nodes"),
)
#: Models whose heads share the hidden width.
_WITH_HEADS: Final = frozenset(
    {"gat", "dir-gat", "pyg:GATConv", "pyg:GATv2Conv", "pyg:TransformerConv"}
)
#: Of two clients each knows the other's part of a sum.
_LEAST_MASKED: Final = 3
#: Characters of a refused value that an error repeats.
_MOST_SHOWN: Final = 60


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
    if bool(values["nodes"]) != bool(values["edges"]):
        absent, there = ("nodes", "edges") if values["edges"] else ("edges", "nodes")
        raise ConfigurationError(f"{absent}: missing; expected it beside {there}, or neither")
    for key in OF_TABLES:
        is_given = values[key] not in {"", "refuse"}
        if is_given and not values["nodes"] and values["engine"] != "deployment":
            raise ConfigurationError(
                f"{key}: {shown(values[key])} is for a table of nodes; expected --nodes beside it"
            )
    if values["engine"] != "inline":
        _check_other_engine(values)
    if values["model"] in _WITH_HEADS and values["hidden"] % values["heads"]:
        raise ConfigurationError(
            f"hidden: {values['hidden']} cannot be shared by "
            f"{counted(values['heads'], 'head')}; "
            "expected a multiple of heads"
        )
    check_goal(values)
    _check_steps(values)
    _check_lean(values)
    _check_solver(values)
    if values["task"] == "links":
        _check_links(values)
    if values["sampler"] in {"neighbour", "gns"}:
        _check_fanouts(values)
    if values["secure-aggregation"] == "masked":
        _check_masked(values)
    _check_quorum(values)
    _check_peering(values)
    if values["engine"] == "deployment":
        _check_deployed(values)


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


def _check_steps(values: Mapping[str, Any]) -> None:
    """Check what only one local step, or only several, can do."""
    steps = values["local-steps"]
    if values["optimizer"] != "adam" and steps > 1:
        raise ConfigurationError(
            f"optimizer: {values['optimizer']} does not go with local-steps {steps}, which send "
            "changes of the weights; expected local-steps 1, or server-optimizer"
        )
    if values["server-optimizer"] != "mean" and steps == 1:
        raise ConfigurationError(
            f"server-optimizer: {values['server-optimizer']} does not go with local-steps 1, which "
            "sends gradients; expected local-steps above 1, or optimizer"
        )
    for key, unset in (("proximal-mu", 0), ("local-correction", "none")):
        if values[key] != unset and steps == 1:
            raise ConfigurationError(
                f"{key}: {values[key]} changes nothing with local-steps 1, which sends gradients; "
                f"expected {unset}, or local-steps above 1"
            )
    if values["local-correction"] == "scaffold":
        _check_scaffold(values)


def _check_scaffold(values: Mapping[str, Any]) -> None:
    """Check what the server must be able to read off a change of the weights."""
    for key, expected, why in (
        ("local-optimizer", "sgd", "whose steps are not multiples of gradients"),
        ("proximal-mu", 0, "whose pull would count as a gradient"),
        ("aggregator", "mean", "since corrections are means in any case"),
        ("weight-bits", 32, "which sends all clients the same"),
    ):
        if values[key] != expected:
            raise ConfigurationError(
                f"local-correction: scaffold does not go with {key} {shown(values[key])}, {why}; "
                f"expected {key} {expected}, or local-correction none"
            )


def _check_lean(values: Mapping[str, Any]) -> None:
    """Check what makes updates, features and vectors smaller."""
    if values["row-bits"] < 32:
        for key, expected in (("algorithm", "lazy"), ("codec", "lossless")):
            if values[key] != expected:
                raise ConfigurationError(
                    f"row-bits: {values['row-bits']} does not go with {key} {values[key]}; "
                    f"expected 32, or {key} {expected}"
                )
    if values["basis"] != "none" and values["algorithm"] != "lazy":
        raise ConfigurationError(
            f"basis: {values['basis']} does not go with algorithm {values['algorithm']}; expected "
            "none, or algorithm lazy"
        )


def _check_solver(values: Mapping[str, Any]) -> None:
    """Check what a last layer that is solved for cannot do."""
    if values["solver"] == "rounds":
        return
    expected = {
        "algorithm": ("lazy",),
        "task": ("classes",),
        "loss": ("cross-entropy", AUTO),
        "aggregator": ("mean",),
        "class-weights": ("none",),
        "local-steps": (1,),
        # Sums are asked for once: who misses that has no later round to catch up in.
        "min-clients": (0,),
    }
    for key, fitting in expected.items():
        if values[key] not in fitting:
            raise ConfigurationError(
                f"solver: {values['solver']} does not go with {key} {shown(values[key])}; expected "
                f"rounds, or {key} {fitting[0]}"
            )


def _check_links(values: Mapping[str, Any]) -> None:
    """Check what a training on edges cannot do."""
    for key, expected in {
        "algorithm": "lazy",
        "solver": "rounds",
        "basis": "none",
        "warm-start": False,
        "edges-are": "undirected",
        # Of a sum that a peer would send, or add up, no node's own row is known.
        "boundary-plan": "rows",
        "missing-peers": "wait",
    }.items():
        if values[key] != expected:
            raise ConfigurationError(
                f"{key}: {shown(values[key])} does not go with task links; expected "
                f"{str(expected).lower()}"
            )
    if values["codec"] == "fixed":
        raise ConfigurationError(
            "codec: fixed does not go with task links, whose rows are not summed; expected lossless"
        )
    if values["split"].partition(":")[0] not in {AUTO, "random"}:
        raise ConfigurationError(
            f"split: {shown(values['split'])} does not go with task links, which splits edges by a "
            f"hash of their ends; expected {AUTO}, or random:TRAIN/VAL/TEST"
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


def shown(value: object) -> str:
    """Return a refused value as an error repeats it."""
    text = repr(value)
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."
