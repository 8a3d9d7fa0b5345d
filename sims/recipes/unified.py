"""One machine's devices together: the tables and figures of the Unified CPU-GPU protocol.

Lin, Deng and Prasanna, "A Unified CPU-GPU Protocol for GNN Training" (CF'24): table 3 (time of an
epoch), table 4 (utilisation) and figure 7 (cache). Where there is no GPU two worker processes play
devices of unequal speed, and everything is labelled so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any, Final

from sims.catalogue import Setting
from sims.charts import draw_bars
from sims.mini_batch_graphs import MiniBatchGraph, read_graph
from sims.outcome import Axes, Check, Draw, Figures, Outcome
from sims.unified_rows import LEAST_REACHED, Measured, cache_rows, epoch_rows, use_rows
from sims.unified_runs import (
    HETEROGENEOUS,
    SAMPLERS,
    WITH_GPU,
    Case,
    Devices,
    Sizes,
    devices_here,
    measure,
    measure_cache,
    open_pool,
)

PURPOSE: Final = "training on CPU and GPU together: the Unified CPU-GPU protocol"

DATASET: Final = "fb100_union8"
QUICK_DATASET: Final = "cora"
MODELS: Final = ("gcn", "sage")
FULL: Final = Sizes(
    roots=4096, batch=512, shadow_part=1 / 16, hidden=128, repeats=5, settling=2, cache_roots=2048
)
#: A GPU needs mini-batches as large as the paper's to be busy.
FULL_WITH_GPU: Final = Sizes(
    roots=24_576,
    batch=4096,
    shadow_part=1 / 4,
    hidden=128,
    repeats=5,
    settling=3,
    cache_roots=24_576,
)
QUICK: Final = Sizes(
    roots=128, batch=64, shadow_part=1 / 2, hidden=8, repeats=1, settling=1, cache_roots=128
)
#: Policy and share of all nodes.
CACHES: Final[Mapping[str, tuple[str, float]]] = {
    "none": ("lru", 0.0),
    "degree 20 %": ("degree", 0.2),
    "LRU 20 %": ("lru", 0.2),
    "LRU 40 %": ("lru", 0.4),
}


def run(setting: Setting) -> Outcome:
    """Measure epochs on this machine's devices."""
    dataset = QUICK_DATASET if setting.quick else DATASET
    graph = read_graph(Path(setting.folder_with(dataset)), dataset, seed=0)
    devices = devices_here()
    full = FULL_WITH_GPU if devices[0].has_gpu else FULL
    sizes = QUICK if setting.quick else full
    cases = [Case(*pair) for pair in product(SAMPLERS, MODELS[1:] if setting.quick else MODELS)]
    caches = dict(list(CACHES.items())[:2]) if setting.quick else CACHES
    measured = [_measured(graph, pair, cases, caches, sizes) for pair in devices]
    label = " and ".join(one.devices.label for one in measured)
    return Outcome(
        title=f"Unified CPU-GPU protocol, on {label}",
        setting=_described(graph, measured, sizes),
        rows=[
            *(row for one in measured for case in cases for row in epoch_rows(one, case)),
            *(row for one in measured for case in cases for row in use_rows(one, case)),
            *(row for one in measured for row in cache_rows(one)),
        ],
    )


def _measured(
    graph: MiniBatchGraph,
    devices: Devices,
    cases: list[Case],
    caches: Mapping[str, tuple[str, float]],
    sizes: Sizes,
) -> Measured:
    with open_pool(devices) as pool:
        return Measured(
            devices=devices,
            times={case: measure(graph, pool, devices, case, sizes) for case in cases},
            caches={
                name: measure_cache(graph, pool, devices, sizes, policy=policy, share=share)
                for name, (policy, share) in caches.items()
            },
        )


def _described(graph: MiniBatchGraph, measured: list[Measured], sizes: Sizes) -> dict[str, Any]:
    shadow_roots, shadow_batch = sizes.of("shadow")
    notes: dict[str, Any] = {
        "graph": graph.name,
        "nodes": graph.num_nodes,
        "edges": graph.adjacency.num_edges,
        "roots of an epoch": sizes.roots,
        "batch": sizes.batch,
        "shadow": f"{shadow_roots} roots of an epoch, batch {shadow_batch}",
        "hidden": sizes.hidden,
        "epochs of each kind": sizes.repeats,
        "samplers": "; ".join(
            f"{name}: fanouts {'/'.join(map(str, fanouts))}, {layers} layers"
            for name, (fanouts, layers) in SAMPLERS.items()
        ),
        "standard": "training on the first device alone, by the same samplers, buffers, prepared "
        "ahead alike; static: ratios of the speeds alone, mini-batches cut by number of roots; "
        "dynamic: ratios learned from equal ones on, cut by workload",
        "reference": "of a time, standard training of ours; of a speed-up, the paper's table 3, "
        "Reddit on an A100-3g.20gb; of a part of a bound, the part that must be reached",
        "speeds alone promise": "1 + v2/v1, of each device alone on whole mini-batches, measured "
        "beside. No bound: smaller shares may be faster a root, and two devices aggregate more, "
        "because each draws its own share's neighbourhoods (work repeated)",
        "bound": "standard over the least time of the same dynamic epochs: their aggregations over "
        "the sum of what each device did in them in a second that it was busy",
    }
    for one in measured:
        notes[one.devices.label] = _devices_note(one.devices)
    return notes


def _devices_note(devices: Devices) -> str:
    if devices.has_gpu:
        slowed = f", computing slowed {devices.factors[0]:.2f}x" if devices.factors[0] > 1 else ""
        return f"devices {devices.text}; the GPU's caches sized from its free memory{slowed}"
    assert devices.link_bytes_per_s is not None
    fast, slow = devices.factors
    return (
        f"no GPU: devices {devices.text}, two worker processes of one thread, cpu:0 in the place "
        f"of the GPU slowed {fast:g}x and cpu:1 slowed {slow:g}x: each thread sleeps until its "
        "time is so many times its CPU time. In the experiments on caches alone, feature rows come "
        f"to cpu:0 as if over a link of {devices.link_bytes_per_s / 1e6:g} MB/s (it sleeps)"
    )


def checks_from(figures: Figures, *, quick: bool) -> list[Check]:
    """Return the lines that must hold; two mini-batches take no time worth comparing."""
    there = _there(figures)
    lines = [_bound_check(figures, label, cases) for label, cases in there.items()]
    if quick:
        return lines
    return [
        *lines,
        *(line for item in there.items() for line in _time_checks(figures, *item)),
        *(_cache_check(figures, label) for label in there),
    ]


def _there(figures: Figures) -> dict[str, list[str]]:
    """Return the cases that were measured, by the devices' label."""
    labels = [devices.label for devices in (HETEROGENEOUS, *WITH_GPU)]
    names = [", ".join(pair) for pair in product(SAMPLERS, MODELS)]
    there = {
        label: [name for name in names if f"epoch, standard, {name}, {label}" in figures]
        for label in labels
    }
    return {label: cases for label, cases in there.items() if cases}


def _bound_check(figures: Figures, label: str, cases: Sequence[str]) -> Check:
    most = max(_reached(figures, label, cases))
    return Check(
        line=f"{label}: no case is above the bound by the speeds that devices have in the same "
        f"epochs (most: {most:.2f})",
        holds=most <= 1,
    )


def _time_checks(figures: Figures, label: str, cases: Sequence[str]) -> list[Check]:
    least = min(_reached(figures, label, cases))
    gains = [median(figures[f"speed-up, dynamic, {case}, {label}"].values) for case in cases]
    return [
        Check(
            line=f"{label}: every case reaches {LEAST_REACHED:.0%} of that bound "
            f"(least: {least:.2f})",
            holds=least >= LEAST_REACHED,
            is_target=True,
        ),
        Check(line=f"{label}: every case is faster than standard", holds=min(gains) > 1),
    ]


def _reached(figures: Figures, label: str, cases: Sequence[str]) -> list[float]:
    return [figures[f"part of the bound reached, {case}, {label}"].ours for case in cases]


def _cache_check(figures: Figures, label: str) -> Check:
    without, cached = list(CACHES)[:2]
    seconds = {
        (kind, cache): median(figures[f"epoch, {kind}, cache {cache}, {label}"].values)
        for kind, cache in product(("standard", "dynamic"), (without, cached))
    }
    return Check(
        line=f"{label}: {cached} cached makes standard and unified epochs shorter",
        holds=all(
            seconds[kind, cached] < seconds[kind, without] for kind in ("standard", "dynamic")
        ),
    )


def pictures(figures: Figures) -> list[Draw]:
    """Return what draws epochs, how busy devices are in them, and caches."""
    return [
        partial(draw, figures, label, cases)
        for label, cases in _there(figures).items()
        for draw in (_draw_epochs, _draw_use, _draw_caches)
    ]


def _draw_epochs(figures: Figures, label: str, cases: Sequence[str], axes: Axes) -> None:
    kinds = {"standard alone": "standard", "static": "static", "dynamic": "dynamic"}
    series = {
        name: [figures[f"epoch, {kind}, {case}, {label}"].values for case in cases]
        for name, kind in kinds.items()
    }
    draw_bars(axes, [case.replace(", ", "\n") for case in cases], series)
    axes.set_title(f"seconds of an epoch\n{label}", fontsize=9)
    axes.set_ylabel("seconds (dots: epochs)")


def _draw_use(figures: Figures, label: str, cases: Sequence[str], axes: Axes) -> None:
    ending = f" computes, dynamic, {cases[0]}, {label}"
    fast, slow = (name.removesuffix(ending) for name in figures if name.endswith(ending))
    bars = {
        f"{fast} alone": f"{fast} computes, standard",
        f"{fast}, both": f"{fast} computes, dynamic",
        f"{slow}, both": f"{slow} computes, dynamic",
    }
    series = {
        name: [figures[f"{metric}, {case}, {label}"].values for case in cases]
        for name, metric in bars.items()
    }
    draw_bars(axes, [case.replace(", ", "\n") for case in cases], series)
    axes.set_title(f"share of an epoch in which a device computes\n{label}", fontsize=9)
    axes.set_ylabel("share (dots: epochs)")


def _draw_caches(figures: Figures, label: str, cases: Sequence[str], axes: Axes) -> None:
    del cases  # caches are measured on one of them
    hits = {
        cache: row.ours
        for cache in CACHES
        if (row := figures.get(f"hit rate, dynamic, cache {cache}, {label}")) is not None
    }
    series = {
        name: [figures[f"epoch, {kind}, cache {cache}, {label}"].values for cache in hits]
        for name, kind in {"standard alone": "standard", "dynamic": "dynamic"}.items()
    }
    draw_bars(axes, [f"{cache}\nhits {rate:.0%}" for cache, rate in hits.items()], series)
    axes.set_title(f"seconds of an epoch by cache, neighbour, sage\n{label}", fontsize=9)
    axes.set_ylabel("seconds (dots: epochs)")
