"""Tables and lines of ``python -m sims unified``, from what was measured and simulated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean, median
from typing import Final

from sims.outcome import Check, Row
from sims.simulated_balance import BalancedEpoch, Policy
from sims.unified_epochs import Epoch
from sims.unified_runs import SAMPLERS, CachedTimes, Case, Devices, Times

#: On the simulated clock: speeds of the two devices in each epoch; the second becomes faster.
SPEEDS: Final = ((4.0, 1.0),) * 6 + ((4.0, 2.0),) * 6
CHANGED_AT: Final = 6
#: Speeds that stay, for mini-batches whose roots cost very different amounts.
STEADY: Final = ((4.0, 1.0),) * 8
#: Roots of such a mini-batch: few, so that one hub counts.
SKEWED_BATCH: Final = 128
POLICIES: Final = (
    Policy(name="static", mode="static", by_number=True, knows_speeds=True),
    Policy(name="dynamic, by number", mode="dynamic", by_number=True),
    Policy(name="dynamic, by workload", mode="dynamic"),
)
#: The paper's table 3: standard over unified epoch time, Reddit, platform 1 (A100-3g.20gb).
PUBLISHED: Final[Mapping[Case, float]] = {
    Case("neighbour", "gcn"): 3.27 / 2.32,
    Case("neighbour", "sage"): 3.11 / 2.41,
    Case("shadow", "gcn"): 11.38 / 9.32,
    Case("shadow", "sage"): 10.59 / 9.13,
}
#: Of the bound.
LEAST_REACHED: Final = 0.9
#: Of busy times, from so many epochs after a beginning or a change on.
MOST_IMBALANCE: Final = 0.05
EPOCHS_TO_BALANCE: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What was measured on one set of devices."""

    devices: Devices
    times: Mapping[Case, Times]
    caches: Mapping[str, CachedTimes]


#: Epochs by sampler and policy.
Balanced = Mapping[tuple[str, str], list[BalancedEpoch]]
#: Epochs of skewed mini-batches by policy.
Skewed = Mapping[str, list[BalancedEpoch]]


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


def balance_rows(balanced: Balanced) -> list[Row]:
    """Return what each policy of the balancer came to on the simulated clock."""
    rows = []
    for (sampler, policy), epochs in balanced.items():
        named = f"{policy}, {sampler}, simulated clock"
        halves = {"before": epochs[:CHANGED_AT], "after": epochs[CHANGED_AT:]}
        for when, half in halves.items():
            lost = sum(epoch.makespan for epoch in half) / sum(epoch.ideal for epoch in half) - 1
            last = half[-1].imbalance
            rows += [
                Row(metric=f"time lost {when} the change, {named}", unit="share", ours=lost),
                Row(metric=f"imbalance, last epoch {when} it, {named}", unit="share", ours=last),
            ]
    return rows


def skewed_rows(skewed: Skewed) -> list[Row]:
    """Return what each policy loses on skewed mini-batches once it knows the speeds."""
    return [
        Row.of(
            f"time lost, {policy}, skewed mini-batches, simulated clock",
            [epoch.lost for epoch in epochs[EPOCHS_TO_BALANCE:]],
            unit="share",
        )
        for policy, epochs in skewed.items()
    ]


def checks_of(
    measured: list[Measured], balanced: Balanced, skewed: Skewed, *, quick: bool
) -> list[Check]:
    """Return the lines that must hold.

    Two mini-batches cannot be cut finely, and take no time worth comparing: of them, only the lines
    that compare policies on the simulated clock.
    """
    compared = [_change_check(balanced), _skewed_check(skewed)]
    if quick:
        return compared
    return [*_measured_checks(measured), _imbalance_check(balanced), *compared]


def _measured_checks(measured: list[Measured]) -> list[Check]:
    checks = []
    for one in measured:
        label = one.devices.label
        reached = [times.reached() for times in one.times.values()]
        gains = min(median(times.speed_ups()) for times in one.times.values())
        (_, without), (name, with_cache) = list(one.caches.items())[:2]
        checks += [
            Check(
                line=f"{label}: every case reaches {LEAST_REACHED:.0%} of the bound by the speeds "
                f"that devices have in the same epochs (least: {min(reached):.2f})",
                holds=min(reached) >= LEAST_REACHED,
                is_target=True,
            ),
            Check(
                line=f"{label}: no case is above that bound (most: {max(reached):.2f})",
                holds=max(reached) <= 1,
            ),
            Check(line=f"{label}: every case is faster than standard", holds=gains > 1),
            Check(
                line=f"{label}: {name} cached makes standard and unified epochs shorter",
                holds=_seconds(with_cache.standard) < _seconds(without.standard)
                and _seconds(with_cache.dynamic) < _seconds(without.dynamic),
            ),
        ]
    return checks


def _imbalance_check(balanced: Balanced) -> Check:
    *_, dynamic = (policy.name for policy in POLICIES)
    settled = [
        epoch.imbalance
        for name in SAMPLERS
        for start in (0, CHANGED_AT)
        for epoch in balanced[name, dynamic][start + EPOCHS_TO_BALANCE : start + CHANGED_AT]
    ]
    return Check(
        line=f"simulated clock: imbalance under {MOST_IMBALANCE:.0%} from "
        f"{EPOCHS_TO_BALANCE} epochs after the start and the change on",
        holds=max(settled) < MOST_IMBALANCE,
    )


def _change_check(balanced: Balanced) -> Check:
    static, _, dynamic = (policy.name for policy in POLICIES)
    makespans = {
        key: sum(epoch.makespan for epoch in epochs[CHANGED_AT:])
        for key, epochs in balanced.items()
    }
    return Check(
        line="simulated clock: after the change dynamic takes less time than static",
        holds=all(makespans[name, dynamic] < makespans[name, static] for name in SAMPLERS),
    )


def _skewed_check(skewed: Skewed) -> Check:
    static, _, dynamic = (policy.name for policy in POLICIES)
    pairs = zip(skewed[static], skewed[dynamic], strict=True)
    return Check(
        line="simulated clock: on skewed mini-batches dynamic takes less time than static in every "
        f"epoch from {EPOCHS_TO_BALANCE} after the start on",
        holds=all(other.makespan < one.makespan for one, other in list(pairs)[EPOCHS_TO_BALANCE:]),
    )


def _seconds(epochs: list[Epoch]) -> float:
    return median(epoch.seconds for epoch in epochs)


def _named(one: Measured, case: Case) -> str:
    return f"{case.sampler}, {case.model}, {one.devices.label}"
