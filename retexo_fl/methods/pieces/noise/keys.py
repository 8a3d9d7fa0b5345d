"""What noise on updates, or on the sums of a ridge solution, demands of other keys."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from retexo_fl.config.value_forms import shown
from retexo_fl.errors import ConfigurationError
from retexo_fl.gaussian_privacy import MOST_SIGMA, mu_of
from retexo_fl.units import counted

#: By key, the values that go with it, the one to expect first, and why others do not.
_FITTING: Final[Mapping[str, tuple[tuple[Any, ...], str]]] = MappingProxyType(
    {
        "algorithm": (("lazy",), "where a train node's loss is of one row, which does not change"),
        "secure-aggregation": (("masked",), "since each client adds a share of the noise to a sum"),
        "task": (("classes",), "whose loss is of one node"),
        "model": (
            ("sage", "gcn", "dir-sage", "dir-gcn"),
            "whose gradients can be clipped node by node",
        ),
        "loss": (("cross-entropy", "auto"), "whose gradients are written out"),
        "class-weights": (("none",), "which counts train nodes by class without noise"),
        "structure": (("columns", "degrees"), "which sends no labels of train nodes"),
        "floor": (("none",), "which adds up train nodes' products without noise"),
        "candidates": (("none",), "which counts right train nodes in more rounds than it promises"),
        "optimizer": (
            ("adam", "sgd", "momentum", "yogi", "adagrad"),
            "which asks for no training loss",
        ),
        "local-steps": ((1,), "whose update is a sum over train nodes"),
        "update-bits": ((32,), "since steps of few bits follow from sizes of updates"),
        "row-dp": ((0.0,), "whose rule follows from train nodes' products without noise"),
        "last-rounds": ((0,), "since epsilon is for the rounds that a run begins with"),
        "devices": (("auto", "cpu"), "where gradients are clipped"),
    }
)
#: Likewise of trainings in rounds.
_FITTING_ROUNDS: Final[Mapping[str, tuple[tuple[Any, ...], str]]] = MappingProxyType(
    {"basis": (("none",), "or solver ridge, whose basis has noise")}
)
#: Likewise where a last layer is solved for.
_FITTING_RIDGE: Final[Mapping[str, tuple[tuple[Any, ...], str]]] = MappingProxyType(
    {
        "ridge-penalty": (("validation",), "since cross-validation takes noise for train nodes"),
        "basis-rows": (("own", "sums"), "since a comparison adds up train nodes without noise"),
    }
)


def check_noise(values: Mapping[str, Any]) -> None:
    """Check that nothing of train nodes leaves a client without noise, where noise is asked for.

    Raises:
        ConfigurationError: A key does not go with ``update-dp``; the message names both.
    """
    if not values.get("update-dp"):
        return
    solves = values.get("solver", "rounds") == "ridge"
    of_solver = _FITTING_RIDGE if solves else _FITTING_ROUNDS
    for key, (fitting, why) in {**_FITTING, **of_solver}.items():
        if (value := values.get(key, fitting[0])) not in fitting:
            raise ConfigurationError(
                f"update-dp: {values['update-dp']:g} does not go with {key} {shown(value)}; "
                f"expected {key} {' or '.join(map(str, fitting))}, {why}, or update-dp 0"
            )
    releases, release = values["layers"] * values["rounds"], "update"
    if solves:
        blocks = values["basis-blocks"] if values["basis"] != "none" else 0
        releases, release = 1 + blocks, "sum"
    sigma = math.sqrt(releases) / mu_of(values["update-dp"], values["update-dp-delta"])
    if sigma > MOST_SIGMA:
        raise ConfigurationError(
            f"update-dp: {values['update-dp']:g} for {counted(releases, release)} takes noise of "
            f"{sigma:.4g} times the clip; expected at most {MOST_SIGMA:g}: fewer "
            f"{'basis-blocks' if solves else 'rounds'}, or a larger epsilon"
        )
