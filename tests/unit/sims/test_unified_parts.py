from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from retexo_fl.additions.devices.sampling import Adjacency
from retexo_fl.additions.devices.training.sampled_task import ClientGraph
from retexo_fl.additions.devices.workers.balancer import Balancer
from retexo_fl.additions.devices.workers.pool import WorkerPool
from retexo_fl.additions.devices.workers.task import Share, ShareSums
from retexo_fl.additions.devices.workers.timings import WorkerTimes
from retexo_fl.device_names import parse_devices
from retexo_fl.graph import load_dataset
from retexo_fl.training.schedule import Schedule
from retexo_fl.training.stage_model import ModelShape
from sims import unified_task
from sims.mini_batch_graphs import MiniBatchGraph
from sims.outcome import figures_of
from sims.recipes import unified
from sims.unified_epochs import Epoch, Rig
from sims.unified_rows import Measured, cache_rows, epoch_rows
from sims.unified_runs import (
    HETEROGENEOUS,
    WITH_GPU,
    CachedTimes,
    Case,
    Times,
    choice_of,
    devices_here,
)
from sims.unified_task import CacheChoice, Slowness, UnifiedSettings, UnifiedTask, slowed

pytestmark = pytest.mark.slow

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def graph() -> MiniBatchGraph:
    made = load_dataset("synthetic:nodes=300,edges=1500,classes=3,features=6", data_dir=None)
    assert isinstance(made.features, np.ndarray)
    nodes = np.arange(made.num_nodes)
    return MiniBatchGraph(
        name="synthetic",
        adjacency=Adjacency(indptr=made.indptr, indices=made.indices),
        features=made.features,
        labels=made.labels,
        num_classes=made.num_classes,
        train=nodes[:120],
        validation=nodes[120:200],
        test=nodes[200:],
    )


def settings_of(sampler: str = "neighbour", cache: CacheChoice | None = None) -> UnifiedSettings:
    choice = choice_of(sampler)
    shape = ModelShape(
        model="sage",
        layers=choice.layers,
        inputs=6,
        hidden=8,
        heads=1,
        classes=3,
        dtype="float32",
        heads_between=False,
    )
    return UnifiedSettings(shape=shape, choice=choice, cache=cache or CacheChoice())


def task_of(graph: MiniBatchGraph, settings: UnifiedSettings, device: torch.device) -> UnifiedTask:
    client = ClientGraph(
        adjacency=graph.adjacency,
        rows=graph.features,
        hashes=np.arange(graph.num_nodes, dtype=np.uint64),
        labels=graph.labels,
        train=graph.train,
    )
    return UnifiedTask(device, client, settings)


def sums_of(task: UnifiedTask, settings: UnifiedSettings, device: torch.device) -> list[ShareSums]:
    """Return those of two mini-batches."""
    weights = torch.from_numpy(Schedule(shape=settings.shape).initial(0, seed=0)).to(device)
    shares = [
        Share(epoch=0, batch=batch, items=np.arange(*ends))
        for batch, ends in enumerate(pairwise((0, 40, 90)))
    ]
    return [task.sums(weights, task.prepare(share)) for share in shares]


def gradient(sums: ShareSums) -> np.ndarray:
    assert sums.gradient_sum is not None
    found: np.ndarray = sums.gradient_sum.cpu().numpy()
    return found


@pytest.mark.parametrize("policy", ["lru", "degree"])
def test_cache_changes_what_is_copied_and_nothing_else(graph: MiniBatchGraph, policy: str) -> None:
    cached = settings_of(cache=CacheChoice(policy=policy, rows=100, devices=("cpu:0",)))
    plain = settings_of()
    with_cache = sums_of(task_of(graph, cached, CPU), cached, CPU)
    without = sums_of(task_of(graph, plain, CPU), plain, CPU)
    for one, other in zip(with_cache, without, strict=True):
        np.testing.assert_array_equal(gradient(one), gradient(other))
        rows, hits = one.numbers["cpu:0: rows"], one.numbers["cpu:0: hits"]
        assert one.numbers["cpu:0: copied bytes"] == (rows - hits) * 6 * 4
        assert other.numbers["cpu:0: copied bytes"] == rows * 6 * 4
    assert with_cache[1].numbers["cpu:0: hits"] > 0


@pytest.mark.gpu
@pytest.mark.parametrize("policy", ["lru", "degree"])
def test_gpu_gets_the_gradient_of_the_cpu(graph: MiniBatchGraph, policy: str) -> None:
    settings = settings_of(cache=CacheChoice(policy=policy, rows=100, devices=("cuda:0",)))
    gpu = torch.device("cuda:0")
    on_gpu = sums_of(task_of(graph, settings, gpu), settings, gpu)
    on_cpu = sums_of(task_of(graph, settings, CPU), settings, CPU)
    for one, other in zip(on_gpu, on_cpu, strict=True):
        expected = gradient(other)
        error = np.abs(gradient(one) - expected).max()
        assert error <= 1e-5 * np.abs(expected).max()


def test_slowed_device_sleeps_to_a_multiple_of_its_cpu_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = SimpleNamespace(wall=0.0, spent=0.0, slept=[])
    fake = SimpleNamespace(
        perf_counter=lambda: clock.wall, thread_time=lambda: clock.spent, sleep=clock.slept.append
    )
    monkeypatch.setattr(unified_task, "time", fake)
    with slowed(4):
        # Half a second of the one and a half was another process's.
        clock.wall, clock.spent = 1.5, 1.0
    with slowed(4):
        clock.wall, clock.spent = 11.5, 2.0
    with slowed(1):
        clock.wall, clock.spent = 12.5, 3.0
    assert clock.slept == [2.5, 0, 0]


def test_slow_link_takes_as_long_as_the_uncached_bytes(
    graph: MiniBatchGraph, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []
    settings = settings_of()
    slowness = {"cpu:0": Slowness(link_bytes_per_s=1000.0)}
    task = task_of(
        graph,
        UnifiedSettings(shape=settings.shape, choice=settings.choice, slowness=slowness),
        CPU,
    )
    monkeypatch.setattr("time.sleep", slept.append)
    found = sums_of(task, settings, CPU)
    expected = [sums.numbers["cpu:0: copied bytes"] / 1000 for sums in found]
    assert [seconds for seconds in slept if seconds > 0] == expected


@pytest.mark.parametrize("sampler", ["neighbour", "shadow"])
def test_epochs_train_every_root_alone_and_together(graph: MiniBatchGraph, sampler: str) -> None:
    with (
        WorkerPool(parse_devices("cpu").settle()) as pool,
        Rig(pool, graph, settings_of(sampler), roots=graph.train, batch_size=50) as rig,
    ):
        half = rig.alone(0, share=0.5)
        first, last = (rig.together(Balancer(1)) for _ in range(2))
    assert (half.num_roots, half.numbers["count"]) == (60, 60)
    assert (first.num_roots, first.numbers["count"]) == (120, 120)
    assert last.numbers["loss_sum"] < first.numbers["loss_sum"]
    assert first.of("cpu:0", "rows") == first.total("rows") > 120
    assert first.of("cpu:1", "rows") == 0


def epoch_of(
    seconds: float,
    aggregations: float,
    num_roots: int = 100,
    busy_s: tuple[float, float] = (8.0, 4.0),
) -> Epoch:
    """Return one whose first device does nine tenths of the work."""
    shares = {"cpu:0": 0.9 * aggregations, "cpu:1": 0.1 * aggregations}
    return Epoch(
        seconds=seconds,
        workers=tuple(WorkerTimes(compute_s=spent) for spent in busy_s),
        numbers={f"{name}: aggregations": share for name, share in shares.items()},
        imbalance=0.0,
        num_roots=num_roots,
    )


def test_bound_is_of_the_speeds_in_the_epoch_and_not_of_those_alone() -> None:
    times = Times(
        names=("cpu:0", "cpu:1"),
        standard=[epoch_of(10, 1000)],
        slow=[epoch_of(5, 250, num_roots=25)],
        static=[epoch_of(9, 1200)],
        dynamic=[epoch_of(5, 1200, busy_s=(4.5, 1.0))],
    )
    assert times.promised() == pytest.approx([1.5])
    assert times.repeated() == pytest.approx(0.2)
    assert times.speed_ups("static") == pytest.approx([10 / 9])
    # 1,080 in 4.5 s and 120 in 1 s are 360 in each second of both.
    assert times.bounds() == pytest.approx([10 / (1200 / 360)])
    assert times.reached() == pytest.approx(1200 / 360 / 5)
    assert times.kept() == pytest.approx(2 / 1.5)
    assert times.kept() > 1 > times.reached()


def test_no_epoch_is_shorter_than_its_least_time() -> None:
    for busy_s in ((5.0, 0.1), (5.0, 5.0), (0.2, 5.0), (5.0, 0.0)):
        epoch = epoch_of(5.0, 1000, busy_s=busy_s)
        if busy_s[1] == 0:
            epoch = replace(epoch, numbers={"cpu:0: aggregations": 1000.0})
        assert 0 < epoch.least_s(("cpu:0", "cpu:1")) <= epoch.seconds + 1e-9


def test_devices_are_those_of_this_machine_and_say_what_they_are() -> None:
    assert devices_here() == (WITH_GPU if torch.cuda.is_available() else (HETEROGENEOUS,))
    assert HETEROGENEOUS.label == "heterogeneous CPU devices"
    assert all(devices.has_gpu and "GPU" in devices.label for devices in WITH_GPU)


def measured(dynamic_s: float = 8.0, cached_s: float = 7.0) -> Measured:
    """Return 10 s on one device, a second one of half its speed, and a time of both together."""
    times = Times(
        names=("cpu:0", "cpu:1"),
        standard=[epoch_of(10, 1000)],
        slow=[epoch_of(10, 500, num_roots=50)],
        static=[epoch_of(9, 1200)],
        dynamic=[epoch_of(dynamic_s, 1200, busy_s=(7.5, 7.5))],
    )
    caches = {
        name: CachedTimes(standard=[epoch_of(s, 1)], dynamic=[epoch_of(s, 1)], fast="cpu:0")
        for name, s in (("none", 8.0), ("degree 20 %", cached_s))
    }
    cases = {Case("neighbour", "sage"): times}
    return Measured(devices=HETEROGENEOUS, times=cases, caches=caches)


@pytest.mark.parametrize(
    ("wrong", "line"),
    [
        ({}, None),
        ({"dynamic_s": 9.5}, "reaches 90% of that bound"),
        ({"dynamic_s": 6.0}, "above the bound"),
        ({"dynamic_s": 10.5}, "faster than standard"),
        ({"cached_s": 8.5}, "cached makes"),
    ],
)
def test_lines_of_unified_fail_on_what_contradicts_them(
    wrong: dict[str, float], line: str | None
) -> None:
    one = measured(**wrong)
    figures = figures_of(
        [row for case in one.times for row in epoch_rows(one, case)] + cache_rows(one)
    )
    for quick in (False, True):
        checks = unified.checks_from(figures, quick=quick)
        failing = [check.line for check in checks if not check.holds]
        assert checks
        if line is None or (quick and "above" not in line):
            assert failing == []
        else:
            assert any(line in each for each in failing), failing
