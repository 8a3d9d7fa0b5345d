"""Which of a run's keys change how it trains, and how many bytes: each is tried by itself.

A key that says where, what is reported or what is protected must leave lean training alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import pytest

import retexo_fl
from retexo_fl.client.preparation import make_parts
from retexo_fl.config import config_values, default_values, key_infos, make_config
from retexo_fl.config.profiles import PROFILES, leaving, profile_values
from retexo_fl.errors import InputError, Interrupted
from retexo_fl.run_log.events import RoundClosed
from retexo_fl.run_log.profile import ChosenProfile
from retexo_fl.simulation.inline_engine import run_inline
from tests.support.played_devices import play_devices
from tests.support.ways import takes_devices

#: Small, but for enough bytes to compare.
BASE: Final[Mapping[str, Any]] = MappingProxyType(
    {
        "dataset": "synthetic:nodes=150,edges=600,classes=3,features=40,words=6,signal=0.5",
        "model": "gcn",
        "clients": 3,
        "hidden": 8,
        "rounds": 4,
        "patience": 0,
        "split": "random:0.4/0.3/0.3",
    }
)
#: What sets lean training apart from the paper's schedule.
METHOD: Final = ("optimizer", "dropout", "basis", "warm-start", "solver", "algorithm")

#: The same weights, and bytes but for what metrics add to answers.
SAME: Final = "same"
#: The same bytes, and weights but for their last bits.
CLOSE: Final = "close"
#: Lean training of something else, or of more: of another graph, width or seed, under masks.
LEAN: Final = "lean"
#: Another method, which a line tells with what it costs.
LEFT: Final = "left"
#: Not in a run on this machine alone.
REFUSED: Final = "refused"


@dataclass(frozen=True, slots=True)
class Tried:
    """A key's other value, what it may change, and what goes with it."""

    value: Any
    may_change: str
    more: Mapping[str, Any] = field(default_factory=dict)


#: Every key of a run. A new one needs a line here.
KEYS: Final[Mapping[str, Tried]] = MappingProxyType(
    {
        # Which graph, and whose.
        "dataset": Tried("synthetic:nodes=120,edges=400,classes=3,features=30", LEAN),
        "data-dir": Tried("elsewhere", SAME),
        "nodes": Tried("nodes.csv", LEAN, {"edges": "edges.csv", "dataset": None}),
        "edges": Tried("edges.csv", LEAN, {"nodes": "nodes.csv", "dataset": None}),
        "features": Tried(
            "auto", LEAN, {"nodes": "nodes.csv", "edges": "edges.csv", "dataset": None}
        ),
        "drop-columns": Tried(
            "x1",
            LEAN,
            {"features": "auto", "nodes": "nodes.csv", "edges": "edges.csv", "dataset": None},
        ),
        "key-column": Tried(
            "key", LEAN, {"nodes": "nodes.csv", "edges": "edges.csv", "dataset": None}
        ),
        "label-column": Tried(
            "label", LEAN, {"nodes": "nodes.csv", "edges": "edges.csv", "dataset": None}
        ),
        **{
            key: Tried(value, LEAN, {"nodes": "nodes.csv", "edges": "edges.csv", "dataset": None})
            for key, value in (
                *(("unlabelled-values", "unknown"), ("repeated-nodes", "first")),
                *(("source-column", "source"), ("target-column", "target")),
                *(("delimiter", "comma"), ("decimal", "point"), ("encoding", "utf-8")),
                # Of a split by time alone.
                ("node-time-column", "came"),
            )
        },
        **{
            key: Tried(value, LEAN, {"nodes": "nodes.csv", "edges": "timed.csv", "dataset": None})
            for key, value in (("weight-column", "time"), ("time-column", "time"))
        },
        "predicates": Tried(
            "knows", LEAN, {"nodes": "nodes.csv", "edges": "said.csv", "dataset": None}
        ),
        "partitions": Tried("parts", SAME, {"dataset": None, "clients": None, "split": None}),
        # The graph has no types.
        "type-column": Tried("type", REFUSED),
        "label-types": Tried("customer", REFUSED),
        "edges-are": Tried("directed", REFUSED),
        "merge-edges": Tried("sum", SAME),
        "self-loops": Tried("drop", SAME),
        "unknown-nodes": Tried("drop", SAME),
        "edges-before": Tried(
            "5", LEAN, {"nodes": "nodes.csv", "edges": "timed.csv", "dataset": None}
        ),
        "clients": Tried(4, LEAN),
        "partitioner": Tried("louvain", LEAN),
        "split": Tried("random:0.5/0.2/0.3", LEAN),
        "task": Tried("links", LEFT, {"split": None}),
        # Of a graph with types.
        "relation": Tried("bought", REFUSED, {"task": "links", "split": None}),
        "feature-normalisation": Tried("row", LEAN),
        "structure": Tried("degrees", LEAN),
        "structure-columns": Tried(32, LEAN),
        "structure-steps": Tried(8, LEAN),
        "structure-bits": Tried(8, LEAN),
        # The method.
        "algorithm": Tried("drop", LEFT),
        "model": Tried("sage-pool", LEFT),
        "layers": Tried(5, LEFT),
        "optimizer": Tried("adam", LEFT),
        "learning-rate": Tried(0.1, LEFT),
        "dropout": Tried(0.5, LEFT),
        "basis": Tried("none", LEFT),
        "solver": Tried("ridge", LEFT),
        "ridge-penalty": Tried("validation", LEAN),
        "warm-start": Tried(False, LEFT),
        "candidates": Tried("none", SAME),
        "floor": Tried("none", LEAN),
        "local-steps": Tried(2, LEAN),
        "proximal-mu": Tried(0.1, LEFT, {"local_steps": 2}),
        "local-correction": Tried("scaffold", LEFT, {"local_steps": 2, "local_optimizer": "sgd"}),
        "server-optimizer": Tried("sgd", LEFT, {"local_steps": 2}),
        "weight-decay": Tried(0.1, LEFT),
        "aggregator": Tried("median", LEFT),
        "sampler": Tried("full", LEFT, {"algorithm": "drop"}),
        "codec": Tried("dense", LEFT),
        # How large, how long, in how many bits.
        "hidden": Tried(16, LEAN),
        "heads": Tried(4, SAME),
        "num-bases": Tried(2, REFUSED),
        "unlabelled-types": Tried("drawn", SAME),
        "rounds": Tried(3, LEAN),
        "last-rounds": Tried(3, LEAN),
        "patience": Tried(1, LEAN),
        "basis-rows": Tried("own", LEAN),
        "basis-blocks": Tried(2, LEAN),
        "basis-bits": Tried(32, LEAN),
        "second-rows": Tried("none", LEAN),
        "row-dp": Tried(4.0, LEAN, {"second-rows": "none"}),
        "row-bits": Tried(4, LEAN),
        "update-bits": Tried(4, LEAN),
        "weight-bits": Tried(8, LEAN),
        "boundary-plan": Tried("cover", LEAN),
        "seed": Tried(1, LEAN),
        "dtype": Tried("float64", LEAN),
        # Of other methods: nothing without these.
        "boundary-rate": Tried(0.5, SAME),
        "boundary-scaling": Tried("none", SAME),
        "activations": Tried("recompute", SAME),
        "local-optimizer": Tried("sgd", SAME),
        "local-learning-rate": Tried(0.1, SAME),
        "link-head": Tried("mlp", SAME),
        "negatives": Tried(2, SAME),
        "fanouts": Tried("5/5", SAME),
        "batch-nodes": Tried(64, SAME),
        "cache-share": Tried(0.5, SAME),
        "cache-epochs": Tried(2, SAME),
        # What is wanted of the model, and reported.
        "loss": Tried("focal:2", LEAN),
        "class-weights": Tried("1,2,0.5", LEAN),
        "metric": Tried("macro-f1", LEAN),
        "per-client-metrics": Tried(True, SAME),
        # Who sees what.
        "cohort-size": Tried(3, SAME),
        "secure-aggregation": Tried("masked", LEAN),
        "update-dp": Tried(8.0, LEFT),
        "update-dp-delta": Tried(1e-6, SAME),
        "update-dp-clip": Tried(0.5, SAME),
        "introductions": Tried(True, REFUSED),
        "relay": Tried(True, REFUSED),
        # Where, and how long somebody waits.
        "threads": Tried(2, CLOSE),
        "gpu-cache": Tried("lru", SAME),
        "devices": Tried("cpu:2", CLOSE),
        "balance": Tried("static", SAME),
        "missing-peers": Tried("drop", SAME),
        "exchange-deadline-s": Tried(30.0, SAME),
        "exchange-poll-s": Tried(5.0, SAME),
        "message-timeout-s": Tried(60.0, SAME),
        "min-clients": Tried(2, SAME, {"round_deadline_s": 60.0}),
        "round-deadline-s": Tried(60.0, SAME, {"min_clients": 2}),
        "checkpoint-every": Tried(2, SAME),
        "engine": Tried("deployment", REFUSED),
        "links": Tried("4g", SAME),
        "memory-budget": Tried("8GB", SAME),
        "out": Tried("out", SAME),
        "resume": Tried("out", REFUSED),
    }
)


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Tables and parts, in a folder that is the present one."""
    place = tmp_path_factory.mktemp("keys")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        play_devices(patch)
        lines = [f"k{n},{n % 7},{n % 3},{n % 3}" for n in range(60)]
        Path("nodes.csv").write_text("\n".join(["key,x0,x1,label", *lines]) + "\n")
        pairs = [(n, (n + step) % 60) for n in range(60) for step in (1, 3)]
        Path("edges.csv").write_text(
            "\n".join(["source,target", *(f"k{a},k{b}" for a, b in pairs)]) + "\n"
        )
        Path("timed.csv").write_text(
            "\n".join(["source,target,time", *(f"k{a},k{b},{a % 9}" for a, b in pairs)]) + "\n"
        )
        said = [f"k{a},k{b},{'knows' if a % 9 else 'cites'}" for a, b in pairs]
        Path("said.csv").write_text("\n".join(["source,target,predicate", *said]) + "\n")
        retexo_fl.partition(
            out="parts", **{key: BASE[key] for key in ("dataset", "clients", "split")}
        )
        yield place


@pytest.fixture(scope="module")
def base(folder: Path) -> retexo_fl.Run:
    """The run without any other key."""
    return retexo_fl.run(out="base", quiet=True, **BASE)


def trained(key: str, tried: Tried) -> retexo_fl.Run:
    keys = {"out": f"run-{key}", **BASE, **tried.more, key: tried.value}
    return retexo_fl.run(quiet=True, **keys)


def method(run: retexo_fl.Run) -> dict[str, Any]:
    return {key: value for key, value in config_values(run.config).items() if key in METHOD}


def text_of(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def weights(run: retexo_fl.Run) -> list[bytes]:
    return [path.read_bytes() for path in sorted((run.path / "model").iterdir())]


def moved(run: retexo_fl.Run) -> int:
    total = run.result.volumes["payload"]["total"]
    assert total is not None
    return total


def test_each_key_is_tried() -> None:
    assert KEYS.keys() == key_infos().keys(), "a new key says here what it may change"


#: What changes nothing by itself changes nothing together, and by day is tried so.
TOGETHER: Final = [
    key
    for key, it in KEYS.items()
    if it.may_change == SAME and not it.more and not takes_devices({key: it.value})
]


def marks_of(key: str) -> list[pytest.MarkDecorator]:
    if key in TOGETHER:
        return [pytest.mark.slow]
    return [pytest.mark.devices] if takes_devices({key: KEYS[key].value}) else []


def test_keys_that_change_nothing_do_not_together(base: retexo_fl.Run) -> None:
    values = {key: KEYS[key].value for key in TOGETHER if key != "out"}
    run = retexo_fl.run(out="together", quiet=True, **{**BASE, **values})
    assert run.result.profile is not None
    assert run.result.profile.name == "lean"
    assert run.result.profile.why.startswith("by default")
    assert method(run) == method(base)
    assert moved(run) == pytest.approx(moved(base), rel=0.01)
    assert weights(run) == weights(base)


@pytest.mark.parametrize("key", [pytest.param(key, marks=marks_of(key)) for key in KEYS])
def test_a_key_changes_what_it_may(key: str, base: retexo_fl.Run) -> None:
    tried = KEYS[key]
    if tried.may_change == REFUSED:
        with pytest.raises(InputError, match=key):
            trained(key, tried)
        return
    run = trained(key, tried)
    profile = run.result.profile
    assert profile is not None
    if tried.may_change == LEFT:
        assert method(run) != method(base)
        lazy = run.config.algorithm == "lazy"
        assert profile.name == ("retexo" if lazy else "end-to-end")
        assert f"{key} = {text_of(tried.value)}" in profile.why
        assert profile.payload_at_most is not None
        assert profile.sentence in (run.path / "report.html").read_text()
        return
    assert profile.name == "lean"
    assert profile.why.startswith("by default")
    of_kind = profile_values("lean", {key: tried.value})
    assert method(run) == {key: of_kind.get(key, value) for key, value in method(base).items()}
    if tried.may_change in {SAME, CLOSE}:
        assert moved(run) == pytest.approx(moved(base), rel=0.01)
    if tried.may_change == SAME:
        assert weights(run) == weights(base)


def test_what_lean_training_has_itself_keeps_it() -> None:
    lean = {**default_values(), **PROFILES["lean"]}
    assert leaving(lean) == ()
    assert leaving({"engine": "flower", "model": "gcn", "weight-decay": 0.05}) == ()
    assert leaving({"engine": "deployment", "rounds": 9, "optimizer": "adam"}) == ("optimizer",)


def test_a_resumed_run_has_the_profile_that_it_began_with(base: retexo_fl.Run) -> None:
    def stop(event: object) -> None:
        if isinstance(event, RoundClosed) and event.round == 2:
            raise KeyboardInterrupt

    keys = {**BASE, "optimizer": "sgd", "out": "stopped", "quiet": True}
    with pytest.raises(Interrupted):
        retexo_fl.run(callbacks=[stop], **keys)
    run = retexo_fl.Run.open("stopped").resume(quiet=True)
    assert run.result.attempts == 2
    assert run.result.profile is not None
    assert run.result.profile.sentence.startswith(
        "profile retexo, since optimizer = sgd was chosen: up to about "
    )
    assert run.result.profile.sentence in run.report().read_text()


def test_a_server_without_the_graph_counts_what_the_paper_costs(base: retexo_fl.Run) -> None:
    config = make_config({**BASE, "out": str(Path("deployed").absolute())})
    why = "since optimizer = adam was chosen"
    run_inline(config, make_parts(config), profile=ChosenProfile(name="retexo", why=why))
    profile = retexo_fl.Run.open("deployed").result.profile
    assert profile is not None
    own_rows = retexo_fl.run(out="own", quiet=True, basis_rows="own", basis_blocks=8, **BASE)
    for bound, run in (
        (profile.payload_at_most, retexo_fl.Run.open("deployed")),
        (profile.lean_at_most, own_rows),
    ):
        payload = run.result.volumes["payload"]
        arrays = moved(run) - (payload["control"] or 0)
        assert bound is not None
        # Features count as dense, of which most are zero.
        assert 0.3 * bound < arrays < 1.01 * bound
    assert profile.sentence.startswith(f"profile retexo, {why}: up to about ")
