"""One machine's devices together: the tables and figures of the Unified CPU-GPU protocol.

Lin, Deng and Prasanna, "A Unified CPU-GPU Protocol for GNN Training" (CF'24): table 3 (time of an
epoch), table 4 (utilisation), figures 3, 6 and 7 (breakdown, balance, cache). Where there is no GPU
two worker processes play devices of unequal speed, and everything is labelled so.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, Final

from retexo_fl.additions.devices.sampling.full import FullSampler
from retexo_fl.additions.devices.sampling.workloads import root_workloads
from sims.catalogue import Setting
from sims.mini_batch_graphs import MiniBatchGraph, read_graph
from sims.outcome import Outcome
from sims.simulated_balance import simulate
from sims.unified_figures import (
    draw_balance,
    draw_breakdown,
    draw_cache,
    draw_epochs,
    draw_skewed,
)
from sims.unified_rows import (
    POLICIES,
    SKEWED_BATCH,
    SPEEDS,
    STEADY,
    Balanced,
    Measured,
    Skewed,
    balance_rows,
    cache_rows,
    checks_of,
    epoch_rows,
    skewed_rows,
    use_rows,
)
from sims.unified_runs import (
    SAMPLERS,
    Case,
    Devices,
    Sizes,
    choice_of,
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
    """Measure epochs on this machine's devices, and the balancer on a simulated clock."""
    dataset = QUICK_DATASET if setting.quick else DATASET
    graph = read_graph(Path(setting.folder_with(dataset)), dataset, seed=0)
    devices = devices_here()
    full = FULL_WITH_GPU if devices[0].has_gpu else FULL
    sizes = QUICK if setting.quick else full
    cases = [Case(*pair) for pair in product(SAMPLERS, MODELS[1:] if setting.quick else MODELS)]
    caches = dict(list(CACHES.items())[:2]) if setting.quick else CACHES
    measured = [_measured(graph, pair, cases, caches, sizes) for pair in devices]
    balanced = _balanced(graph, sizes)
    skewed = _skewed(graph, sizes)
    ideal = [speeds[0] / sum(speeds) for speeds in SPEEDS]
    label = " and ".join(one.devices.label for one in measured)
    return Outcome(
        title=f"Unified CPU-GPU protocol, on {label}",
        setting=_described(graph, measured, sizes),
        rows=[
            *(row for one in measured for case in cases for row in epoch_rows(one, case)),
            *(row for one in measured for case in cases for row in use_rows(one, case)),
            *(row for one in measured for row in cache_rows(one)),
            *balance_rows(balanced),
            *skewed_rows(skewed),
        ],
        checks=tuple(checks_of(measured, balanced, skewed, quick=setting.quick)),
        pictures=(
            *(partial(draw_epochs, one.times, one.devices.label) for one in measured),
            *(partial(draw_breakdown, one.times, one.devices.label) for one in measured),
            *(partial(draw_cache, one.caches, one.devices.label) for one in measured),
            partial(draw_balance, balanced, "ratio", ideal),
            partial(draw_balance, balanced, "imbalance", ()),
            partial(draw_skewed, skewed),
        ),
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


def _balanced(graph: MiniBatchGraph, sizes: Sizes) -> Balanced:
    found = {}
    for name in SAMPLERS:
        count, batch_size = sizes.of(name)
        roots = graph.adjacency.near_together(graph.train[:count])
        sampler = choice_of(name).make(graph.adjacency, roots)
        workloads = root_workloads(sampler, roots, cache=None)
        for policy in POLICIES:
            found[name, policy.name] = simulate(
                policy, sampler, roots, workloads, SPEEDS, batch_size=batch_size
            )
    return found


def _skewed(graph: MiniBatchGraph, sizes: Sizes) -> Skewed:
    """Simulate one layer over all neighbours: a root costs its degree, which is skewed."""
    roots = graph.train[: sizes.roots]
    sampler = FullSampler(graph.adjacency, 1)
    workloads = root_workloads(sampler, roots, cache=None)
    batch_size = min(SKEWED_BATCH, sizes.batch)
    return {
        policy.name: simulate(policy, sampler, roots, workloads, STEADY, batch_size=batch_size)
        for policy in POLICIES
    }


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
        "skewed mini-batches": f"{min(SKEWED_BATCH, sizes.batch)} roots, one layer over all "
        "neighbours: a root costs its degree",
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
