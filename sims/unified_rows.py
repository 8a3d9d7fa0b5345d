"""Tables of ``python -m sims unified``, from what was measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Final

from sims.outcome import Row
from sims.unified_runs import CachedTimes, Case, Devices, Times

#: The paper's table 3: standard over unified epoch time, Reddit, platform 1 (A100-3g.20gb).
PUBLISHED: Final[Mapping[Case, float]] = {
    Case("neighbour", "gcn"): 3.27 / 2.32,
    Case("neighbour", "sage"): 3.11 / 2.41,
    Case("shadow", "gcn"): 11.38 / 9.32,
    Case("shadow", "sage"): 10.59 / 9.13,
}
#: Of the bound.
LEAST_REACHED: Final = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What was measured on one set of devices."""

    devices: Devices
    times: Mapping[Case, Times]
    caches: Mapping[str, CachedTimes]


def epoch_rows(one: Measured, case: Case) -> list[Row]:
    """Return the paper's table 3 and what bounds it."""
    times, named = one.times[case], _named(one, case)
    standard = [epoch.seconds for epoch in times.standard]
    rows = [Row.of(f"epoch, standard, {named}", standard, unit="s")]
    for kind in ("static", "dynamic"):
        seconds = [epoch.seconds for epoch in getattr(times, kind)]
        rows.append(Row.of(f"epoch, {kind}, {named}", seconds, unit="s", reference=fmean(standard)))
    published = PUBLISHED[case]
    return [
        *rows,
        Row.of(f"speed-up, static, {named}", times.speed_ups("static"), unit="times"),
        Row.of(f"speed-up, dynamic, {named}", times.speed_ups(), unit="times", reference=published),
        Row.of(f"speeds alone promise, {named}", times.promised(), unit="times"),
        Row(metric=f"part of that promise kept, {named}", unit="share", ours=times.kept()),
        Row(metric=f"work repeated, {named}", unit="share", ours=times.repeated()),
        Row.of(f"bound of the speed-up, {named}", times.bounds(), unit="times"),
        Row(
            metric=f"part of the bound reached, {named}",
            unit="share",
            ours=times.reached(),
            reference=LEAST_REACHED,
        ),
    ]


def use_rows(one: Measured, case: Case) -> list[Row]:
    """Return the paper's table 4: how busy devices and memory are."""
    times, named = one.times[case], _named(one, case)
    fast, slow = times.names
    standard, dynamic = times.standard, times.dynamic
    rows = [
        Row.of(
            f"{device} computes, {kind}, {named}",
            [epoch.workers[place].compute_s / epoch.seconds for epoch in epochs],
            unit="share",
        )
        for kind, epochs, place, device in (
            ("standard", standard, 0, fast),
            ("dynamic", dynamic, 0, fast),
            ("dynamic", dynamic, 1, slow),
        )
    ]
    for kind, epochs in (("standard", standard), ("dynamic", dynamic)):
        rates = [epoch.total("copied bytes") / epoch.seconds / 1e6 for epoch in epochs]
        rows.append(Row.of(f"feature rows gathered, {kind}, {named}", rates, unit="MB/s"))
    idle = [epoch.imbalance for epoch in dynamic]
    return [*rows, Row.of(f"imbalance of busy times, dynamic, {named}", idle, unit="share")]


def cache_rows(one: Measured) -> list[Row]:
    """Return figure 7: what a cache of feature rows on the fast device saves."""
    rows = []
    for name, times in one.caches.items():
        named = f"cache {name}, {one.devices.label}"
        standard = [epoch.seconds for epoch in times.standard]
        dynamic = [epoch.seconds for epoch in times.dynamic]
        copied = [epoch.of(times.fast, "copied bytes") / 1e6 for epoch in times.dynamic]
        rows += [
            Row.of(f"epoch, standard, {named}", standard, unit="s"),
            Row.of(f"epoch, dynamic, {named}", dynamic, unit="s", reference=fmean(standard)),
            Row.of(f"copied to {times.fast}, dynamic, {named}", copied, unit="MB"),
            Row(metric=f"hit rate, dynamic, {named}", unit="share", ours=times.hit_rate()),
        ]
    return rows


def _named(one: Measured, case: Case) -> str:
    return f"{case.sampler}, {case.model}, {one.devices.label}"
