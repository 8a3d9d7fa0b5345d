"""What `retexo run` costs as nodes, edges, clients, features and layers grow, and how fast.

Each point is a process of its own, with the engine inline: its processor time, its resident memory
at most, and the bytes of its ledger. Along an axis all else stays as it is; the exponents are of
what is beyond the axis's smallest point (:mod:`sims.exponents`), whose cost is the constant part.
What lies beyond one machine is computed from these figures by :mod:`sims.beyond`.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from sims.beyond import beyond_rows, link_state_cost
from sims.catalogue import Setting
from sims.charts import draw_growth
from sims.exponents import Growth, beyond_smallest
from sims.kept import Kept, Work
from sims.measured_process import Used, measure_command
from sims.outcome import Axes, Check, Draw, Figures, Outcome, Row, Spread

PURPOSE: Final = "time, memory and bytes against nodes, edges, clients, features, layers"

#: Of one point.
TIMEOUT_S: Final = 1200.0
MOST_BYTES: Final = 17 * 10**9
#: By how much cost may grow faster than the work.
ALLOWED: Final = 0.1
CPU: Final = "processor time"
MEMORY: Final = "memory at most"
BYTES: Final = "bytes, all"
MODEL_BYTES: Final = "bytes, updates and weights"
_UNITS: Final[Mapping[str, str]] = {CPU: "s", MEMORY: "GB", BYTES: "GB", MODEL_BYTES: "GB"}
_COMMON: Final[Mapping[str, object]] = {
    "model": "gcn",
    "hidden": 16,
    "layers": 2,
    "rounds": 2,
    "clients": 4,
    "partitioner": "random",
    "split": "random-unstratified:0.5/0.1/0.4",
    "codec": "dense",
    "checkpoint-every": 100,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """One thing that grows.

    Attributes:
        graph: The data set's text; ``{size}`` in it is the size.
        sizes: Ascending; the first is the constant part.
        quick: The same with ``--quick``.
        keys: What differs from the common configuration.
        key: The key that is the size; None where the graph has it.
        measures: What is fitted.
        linear: Measures whose exponent is to be 1; those of others, at most 1.
        told_only: Measures whose exponent is told, with no line that must hold.
        from_parts: The run starts from parts that were cut before, so that its memory is that of
            clients alone.
    """

    graph: str
    sizes: Sequence[int]
    quick: Sequence[int]
    keys: Mapping[str, object]
    key: str | None = None
    measures: Sequence[str] = (CPU, MEMORY, BYTES)
    linear: Sequence[str] = ()
    told_only: Sequence[str] = ()
    from_parts: bool = False

    def of(self, setting: Setting) -> Sequence[int]:
        """Return the sizes to measure."""
        return self.quick if setting.quick else self.sizes


AXES: Final[Mapping[str, Axis]] = {
    "nodes": Axis(
        graph="synthetic:nodes={size},degree=10,features=32",
        sizes=(1_000, 10_000, 100_000, 300_000, 1_000_000, 2_400_000),
        quick=(1_000, 100_000, 200_000, 400_000),
        keys={},
        linear=(BYTES,),
        told_only=(CPU,),
    ),
    "edges": Axis(
        graph="synthetic:nodes=100000,edges={size},features=16",
        sizes=(100_000, 1_000_000, 2_000_000, 4_000_000, 8_000_000),
        quick=(100_000, 1_000_000, 2_000_000),
        keys={"clients": 64},
    ),
    "clients": Axis(
        graph="synthetic:nodes=10000,degree=4,features=16",
        sizes=(2, 30, 300, 1_000, 3_000, 10_000),
        quick=(2, 30, 100),
        keys={},
        key="clients",
        measures=(CPU, MEMORY, BYTES, MODEL_BYTES),
        linear=(MODEL_BYTES,),
    ),
    "features": Axis(
        graph="synthetic:nodes=100000,degree=10,features={size}",
        sizes=(8, 64, 128, 256, 512),
        quick=(8, 64, 128),
        keys={},
        linear=(BYTES,),
        told_only=(CPU,),
    ),
    "layers": Axis(
        graph="synthetic:nodes=300000,degree=10,features=64",
        sizes=(1, 2, 3, 5, 9),
        quick=(1, 2, 3),
        keys={"hidden": 64},
        key="layers",
        linear=(BYTES,),
    ),
    "nodes of a client": Axis(
        graph="synthetic:nodes={size},degree=10,features=32",
        sizes=(2_000, 100_000, 300_000, 1_000_000, 2_000_000),
        quick=(2_000, 100_000, 300_000),
        keys={"clients": 2},
        measures=(CPU, MEMORY, BYTES),
        linear=(MEMORY, BYTES),
        told_only=(CPU,),
        from_parts=True,
    ),
}
#: What one point costs, by measure.
Costs = Mapping[str, float]


def run(setting: Setting) -> Outcome:
    """Measure all points, fit all exponents."""
    kept = Kept(setting.kept)
    costs = {name: _points(kept, axis, axis.of(setting)) for name, axis in AXES.items()}
    rows = [row for name in AXES for row in _rows(name, costs[name])]
    rows += beyond_rows(link_state_cost(), _bytes_of_another_client(costs["clients"]))
    return Outcome(
        title="What `retexo run` costs as it grows, beyond the smallest point",
        setting={
            **_COMMON,
            "engine": "inline",
            "axes": "; ".join(_described(name, axis) for name, axis in AXES.items()),
            "bounds": f"{TIMEOUT_S:g} s and {MOST_BYTES / 1e9:g} GB of address space a point",
            "reference": "of exponents: 1, linear; spread: one standard error of the fit",
        },
        rows=rows,
    )


def _described(name: str, axis: Axis) -> str:
    keys = "".join(f", {key} {value}" for key, value in axis.keys.items())
    return f"{name}: {axis.graph}{keys}{', from parts cut before' if axis.from_parts else ''}"


def _points(kept: Kept, axis: Axis, sizes: Sequence[int]) -> dict[int, Costs]:
    """Return what points cost; those that were measured by this state of the code are kept."""
    facts = [axis.graph, dict(axis.keys), axis.from_parts]
    return kept.all(
        {size: Work("scaling", [*facts, size], partial(_measure, axis, size)) for size in sizes}
    )


def _measure(axis: Axis, size: int) -> Costs:
    keys = {**_COMMON, **axis.keys, "dataset": axis.graph.format(size=size)}
    if axis.key is not None:
        keys[axis.key] = size
    with tempfile.TemporaryDirectory(prefix="retexo-scaling-") as folder:
        out, parts = Path(folder) / "run", Path(folder) / "parts"
        if axis.from_parts:
            cut = ("dataset", "clients", "partitioner", "split")
            _retexo(("partition", "make"), {key: keys.pop(key) for key in cut}, parts)
            keys["partitions"] = parts
        used = _retexo(("run",), keys, out)
        moved: dict[str, Any] = json.loads((out / "result.json").read_text("utf-8"))["bytes"]
    payload = moved["payload"]
    return {
        CPU: used.cpu_s,
        MEMORY: used.peak_bytes / 1e9,
        BYTES: payload["total"] / 1e9,
        MODEL_BYTES: (payload["updates_up"] + payload["weights_down"]) / 1e9,
    }


def _retexo(command: Sequence[str], keys: Mapping[str, object], out: Path) -> Used:
    words = [word for key, value in keys.items() for word in (f"--{key}", str(value))]
    return measure_command(
        [*command, *words, "--out", str(out)], timeout_s=TIMEOUT_S, most_bytes=MOST_BYTES
    )


def _bytes_of_another_client(costs: Mapping[int, Costs]) -> float:
    """Return what the last clients added to the process, each."""
    *_, before, last = sorted(costs)
    return (costs[last][MEMORY] - costs[before][MEMORY]) * 1e9 / (last - before)


def _rows(name: str, costs: Mapping[int, Costs]) -> list[Row]:
    rows = []
    for measure in AXES[name].measures:
        growth = Growth.of({size: of[measure] for size, of in costs.items()})
        if growth is not None:
            found, error = growth.exponent, growth.error
            spread = [found - error, found, found + error] if error else [found]
            metric = f"exponent of {measure} in {name}"
            rows.append(
                Row(
                    metric=metric,
                    unit="exponent",
                    ours=found,
                    reference=1.0,
                    spread=Spread.of(spread),
                )
            )
            rows.append(Row(metric=f"steepest {metric}", unit="exponent", ours=growth.steepest))
    return [
        *rows,
        *(
            Row(metric=f"{measure}, {size:,} {name}", unit=_UNITS[measure], ours=of[measure])
            for measure in AXES[name].measures
            for size, of in costs.items()
        ),
    ]


def checks_from(figures: Figures, *, quick: bool) -> list[Check]:
    """Return the lines that must hold; small sizes tell too little of time and memory."""
    return [
        _check(figures[metric], name, measure)
        for name, axis in AXES.items()
        for measure in axis.measures
        if (metric := f"exponent of {measure} in {name}") in figures
        if measure not in axis.told_only and (not quick or measure in (BYTES, MODEL_BYTES))
    ]


def _check(row: Row, name: str, measure: str) -> Check:
    is_linear = measure in AXES[name].linear
    least = 1 - ALLOWED if is_linear else None
    error = 0.0 if row.spread is None else (row.spread.high - row.spread.low) / 2
    between = f"{least:g} to {1 + ALLOWED:g}" if least else f"at most {1 + ALLOWED:g}"
    return Check(
        line=f"{measure} grows as {name} to the {row.ours:.2f} (± {error:.2f}; allowed: {between})",
        holds=(least or -1.0) <= row.ours <= 1 + ALLOWED,
    )


def pictures(figures: Figures) -> list[Draw]:
    """Return what draws each cost along all axes."""
    return [partial(_draw, figures, measure) for measure in (CPU, MEMORY, BYTES)]


def _draw(figures: Figures, measure: str, axes: Axes) -> None:
    lines = {}
    for name, axis in AXES.items():
        sizes = sorted({*axis.sizes, *axis.quick})
        costs = {
            float(size): figures[metric].ours
            for size in sizes
            if (metric := f"{measure}, {size:,} {name}") in figures
        }
        if points := beyond_smallest(costs):
            lines[name] = points
    draw_growth(axes, lines, label=f"{measure}, times the first point's")
