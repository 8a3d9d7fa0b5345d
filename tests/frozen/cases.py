"""The trainings and predictions that two versions of the package are compared by.

The recorded grid (:mod:`tests.support.recorded_grid`), and what it has not: clients that forget,
are late or away, under masks and without, ways of training that the grid has no cell of, agents,
and predictions. Each of these is carried out once as it is and once with an interruption within a
stage, from which it goes on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from retexo_fl.client import api
from tests.support.recorded_grid import LINKS, cells, keys_of, name_of

TRAIN: Final = api.TRAIN.message_type
#: What the interrupted form of a case has at the end of its name.
RESUMED: Final = ", resumed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One training or prediction.

    Attributes:
        name: What it is called by.
        keys: Of the configuration, in snake case.
        engine: ``process``, ``fickle`` (one process whose clients go away), ``agents``, or
            ``prediction`` (with the model of such a training).
        happens: By stage and round, what happens to which client as that round begins: ``late``
            (its answer comes with the next round's), ``away`` or ``forgets``.
        stops_at: Kind of message, stage and round: Ctrl-C before the first such message.
        only_sizes: What clients send holds what they drew themselves.
    """

    name: str
    keys: Mapping[str, Any]
    engine: str = "process"
    happens: Mapping[tuple[int, int] | None, tuple[str, int]] = field(default_factory=dict)
    stops_at: tuple[str, int, int] | None = None
    only_sizes: bool = False


def cases() -> Iterator[Case]:
    """Yield all cases."""
    for cell in cells():
        yield Case(name=f"grid: {name_of(cell)}", keys=keys_of(cell))
    for case in (*_masked(), *_ways(), *_between_agents(), *_predictions()):
        yield replace(case, stops_at=None)
        yield replace(case, name=case.name + RESUMED)


#: Two cohorts, and rounds without a client.
_HALVES: Final[dict[str, Any]] = {"clients": 6, "cohort_size": 3}
_QUORUM: Final[dict[str, Any]] = {
    **{"min_clients": 3, "round_deadline_s": 0.9, "message_timeout_s": 20.0}
}
#: Where a machine that is away is asked again.
_AWAY: Final[dict[str, Any]] = {"engine": "deployment"}
_FEW_BITS: Final[dict[str, Any]] = {"update_bits": 8, "weight_bits": 8}
_SCAFFOLD: Final[dict[str, Any]] = {
    **{"local_steps": 3, "local_optimizer": "sgd", "local_correction": "scaffold"}
}
_LEAN: Final[dict[str, Any]] = {"profile": "lean"}
_LAZY: Final[dict[str, Any]] = {"algorithm": "lazy"}
_LBFGS: Final[dict[str, Any]] = {**_LAZY, "optimizer": "lbfgs", "dropout": 0.0}
_IN_STAGE_0: Final = (TRAIN, 0, 2)
_IN_STAGE_1: Final = (TRAIN, 1, 2)
_IN_GRAM: Final = (api.GRAM.message_type, 1, 0)


def _case(
    name: str,
    cell: Mapping[str, Any],
    happens: Mapping[tuple[int, int] | None, tuple[str, int]] | None = None,
    *,
    stops_at: tuple[str, int, int] = _IN_STAGE_1,
    **more: Any,
) -> Case:
    return Case(
        name=name,
        keys=keys_of({"model": "gcn", **cell}),
        engine="process" if happens is None else "fickle",
        happens=happens or {},
        stops_at=stops_at,
        **more,
    )


def _masked() -> Iterator[Case]:
    masked = {"secure_aggregation": "masked"}
    halves = masked | _HALVES | _QUORUM
    yield _case("masks: few bits", masked | _LAZY | _FEW_BITS)
    yield _case("masks: local steps", masked | _LAZY | {"local_steps": 2, "model": "sage"})
    yield _case(
        "masks: macro-f1, weighed",
        masked | _LAZY | {"metric": "macro-f1", "class_weights": "balanced"},
    )
    yield _case("masks: bns", masked | {"algorithm": "bns"}, stops_at=_IN_STAGE_0)
    yield _case("masks: ridge", masked | {"profile": "one-shot"}, stops_at=_IN_GRAM)
    yield _case("masks: lean, one forgets", masked | _LEAN, {(1, 3): ("forgets", 1)})
    yield _case(
        "masks: few bits, one forgets", masked | _LAZY | _FEW_BITS, {(0, 3): ("forgets", 2)}
    )
    yield _case("masks: one late", halves | _LAZY, {(0, 2): ("late", 1)})
    yield _case("masks: lean, one late", halves | _LEAN, {(1, 2): ("late", 4)})
    yield _case(
        "masks: one away", halves | _AWAY | _LAZY, {(0, 2): ("away", 1), (1, 1): ("away", 3)}
    )
    yield _case(
        "masks: lbfgs, one away", halves | _AWAY | _LBFGS | _FEW_BITS, {(0, 3): ("away", 0)}
    )
    yield _case(
        "masks: sums, one away",
        halves | _AWAY | _LEAN | {"basis_rows": "sums"},
        {(1, 2): ("away", 2)},
    )


def _ways() -> Iterator[Case]:
    quorum = {**_QUORUM, "min_clients": 2, "missing_peers": "drop"}
    yield _case("lean: patience", _LEAN | {"patience": 2, "rounds": 12})
    yield _case("lean: four bits, sums", _LEAN | {"update_bits": 4, "basis_rows": "sums"})
    yield _case("lean: one forgets", _LEAN, {(1, 3): ("forgets", 1)})
    yield _case("lean: one late", _LEAN | quorum, {(0, 2): ("late", 1)})
    yield _case("ridge: own rows", {"profile": "one-shot", "basis_rows": "own"}, stops_at=_IN_GRAM)
    yield _case("links: sage, few bits", _LAZY | LINKS | _FEW_BITS | {"model": "sage"})
    yield _case(
        "links: one away",
        _LAZY | LINKS | quorum | _AWAY | {"missing_peers": "wait"},
        {(1, 2): ("away", 0)},
    )
    yield _case("scaffold", _LAZY | _SCAFFOLD)
    yield _case("scaffold: one away", _LAZY | _SCAFFOLD | quorum | _AWAY, {(1, 1): ("away", 2)})
    yield _case("lbfgs", _LBFGS)
    yield _case("lbfgs: one forgets", _LBFGS | _FEW_BITS, {(1, 2): ("forgets", 0)})
    yield _case("standard: few bits", {"algorithm": "standard"} | _FEW_BITS, stops_at=_IN_STAGE_0)


def _between_agents() -> Iterator[Case]:
    masked = {"secure_aggregation": "masked"}
    for case in (
        _case("agents: lazy", _LAZY | {"codec": "fixed", "boundary_plan": "cover"}),
        _case("agents: lean", _LEAN),
        _case("agents: one-shot", {"profile": "one-shot"}, stops_at=_IN_GRAM),
        _case("agents: scaffold", _LAZY | _SCAFFOLD),
        _case("agents: standard", {"algorithm": "standard"}, stops_at=_IN_STAGE_0),
        _case("agents: masks, lean", masked | _LEAN, only_sizes=True),
    ):
        yield replace(case, engine="agents")


def _predictions() -> Iterator[Case]:
    masked = {"secure_aggregation": "masked"}
    for name, cell in {
        "lazy": _LAZY | {"boundary_plan": "cover", "codec": "fixed"},
        "lean": _LEAN,
        "one-shot": {"profile": "one-shot", "model": "sage"},
        "standard": {"algorithm": "standard", "model": "gat"},
        "macro-f1": _LAZY | {"metric": "macro-f1", "layers": 3},
        "masks": _LEAN | masked,
    }.items():
        case = _case(f"prediction: {name}", cell, stops_at=(api.PUBLISH.message_type, 1, 0))
        yield replace(case, engine="prediction")
