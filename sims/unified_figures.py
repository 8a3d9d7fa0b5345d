"""Pictures of ``python -m sims unified``; each names the devices that it was measured on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from statistics import fmean
from typing import Final

from sims.charts import COLORS, draw_bars
from sims.outcome import Axes
from sims.simulated_balance import BalancedEpoch
from sims.unified_epochs import Epoch
from sims.unified_runs import CachedTimes, Case, Times
from sims.unified_task import PARTS

#: Parts of an epoch, bottom up; preparing runs beside computing.
_SHOWN: Final = (*PARTS, "compute")
#: Policies of the balancer that are drawn, with the form of their lines.
_LINES: Final[Mapping[str, str]] = {"static": "--", "dynamic, by workload": "-"}


def draw_epochs(times: Mapping[Case, Times], label: str, axes: Axes) -> None:
    """Draw table 3: times of an epoch, and their bound."""
    kinds = {"standard alone": "standard", "static": "static", "dynamic": "dynamic"}
    series = {
        name: [[epoch.seconds for epoch in getattr(found, kind)] for found in times.values()]
        for name, kind in kinds.items()
    }
    least = [
        fmean(epoch.least_s(found.names) for epoch in found.dynamic) for found in times.values()
    ]
    draw_bars(axes, [_two_lines(case) for case in times], series, marks={"dynamic": least})
    axes.set_title(f"seconds of an epoch (line: bound)\n{label}", fontsize=9)
    axes.set_ylabel("seconds")


def draw_breakdown(times: Mapping[Case, Times], label: str, axes: Axes) -> None:
    """Draw figure 3: where each device's time goes, beside the length of the epoch."""
    width = 0.26
    ticks, names = [], []
    for group, (case, found) in enumerate(times.items()):
        fast, slow = found.names
        bars = ((found.standard, 0, fast), (found.dynamic, 0, fast), (found.dynamic, 1, slow))
        for number, (epochs, place, device) in enumerate(bars):
            at = group + (number - 1) * width
            _stack(axes, at, width * 0.92, _parts(epochs, place, device))
            length = fmean(epoch.seconds for epoch in epochs)
            axes.plot((at - width / 2, at + width / 2), (length, length), "k", linewidth=1.5)
            ticks.append(at)
            names.append(f"{device}\n{'alone' if number == 0 else 'both'}")
        axes.text(
            group,
            -0.17,
            str(_one_line(case)),
            ha="center",
            fontsize=7,
            transform=axes.get_xaxis_transform(),
        )
    axes.set_xticks(ticks, names, fontsize=5)
    axes.set_title(f"breakdown of an epoch (line: its length)\n{label}", fontsize=9)
    axes.set_ylabel("seconds; preparing runs beside computing")
    _put_legend(axes, columns=len(_SHOWN), at=-0.2)


def draw_cache(caches: Mapping[str, CachedTimes], label: str, axes: Axes) -> None:
    """Draw figure 7: epochs with and without a cache of feature rows."""
    groups = [f"{name}\nhits {times.hit_rate():.0%}" for name, times in caches.items()]
    series = {
        "standard alone": [[e.seconds for e in times.standard] for times in caches.values()],
        "dynamic": [[e.seconds for e in times.dynamic] for times in caches.values()],
    }
    draw_bars(axes, groups, series)
    axes.set_title(f"seconds of an epoch by cache, neighbour, sage\n{label}", fontsize=9)
    axes.set_ylabel("seconds")


def draw_balance(
    balanced: Mapping[tuple[str, str], list[BalancedEpoch]],
    what: str,
    ideal: Sequence[float],
    axes: Axes,
) -> None:
    """Draw what the balancer decided, or what came of it, epoch by epoch.

    Args:
        balanced: By sampler and policy.
        what: ``ratio`` or ``imbalance``.
        ideal: What the first is to be; drawn if there is any.
        axes: Where.
    """
    samplers = list(dict.fromkeys(sampler for sampler, _ in balanced))
    for sampler, (policy, form) in product(samplers, _LINES.items()):
        values = [getattr(epoch, what) for epoch in balanced[sampler, policy]]
        color = COLORS[samplers.index(sampler)]
        axes.plot(values, form, color=color, marker=".", label=f"{sampler}: {policy}")
    if ideal:
        axes.step(range(len(ideal)), ideal, "k", where="mid", linewidth=0.8, label="by speeds")
    axes.set_title(f"{what} on a simulated clock,\nworkloads of the real samplers", fontsize=9)
    axes.set_xlabel("epoch", fontsize=8)
    axes.set_ylabel("first device's part" if what == "ratio" else "imbalance of busy times")
    _put_legend(axes, columns=2, at=-0.12)


def draw_skewed(skewed: Mapping[str, list[BalancedEpoch]], axes: Axes) -> None:
    """Draw the time that each policy loses on skewed mini-batches, from the second epoch on."""
    for number, (policy, epochs) in enumerate(skewed.items()):
        lost = [epoch.lost for epoch in epochs]
        form = _LINES.get(policy, ":")
        axes.plot(
            range(1, len(lost)), lost[1:], form, marker=".", color=COLORS[number], label=policy
        )
    axes.set_ylim(bottom=0)
    axes.set_title("time lost on skewed mini-batches,\nsimulated clock, steady speeds", fontsize=9)
    axes.set_xlabel("epoch", fontsize=8)
    axes.set_ylabel("share of the shortest possible time")
    _put_legend(axes, columns=1, at=-0.12)


def _put_legend(axes: Axes, *, columns: int, at: float) -> None:
    """Put a legend with each label once below the axes."""
    handles, labels = axes.get_legend_handles_labels()
    first = dict(zip(reversed(labels), reversed(handles), strict=True))
    axes.legend(
        list(reversed(first.values())),
        list(reversed(first)),
        fontsize=8,
        ncols=columns,
        frameon=False,
        loc="upper center",
        bbox_to_anchor=(0.5, at),
    )


def _parts(epochs: Sequence[Epoch], place: int, device: str) -> dict[str, float]:
    found = {part: fmean(epoch.of(device, f"{part} s") for epoch in epochs) for part in PARTS}
    return {**found, "compute": fmean(epoch.workers[place].compute_s for epoch in epochs)}


def _stack(axes: Axes, at: float, width: float, parts: Mapping[str, float]) -> None:
    bottom = 0.0
    for number, name in enumerate(_SHOWN):
        axes.bar(at, parts[name], width, bottom=bottom, color=COLORS[number], label=name)
        bottom += parts[name]


def _one_line(case: Case) -> str:
    return f"{case.sampler}, {case.model}"


def _two_lines(case: Case) -> str:
    return f"{case.sampler}\n{case.model}"
