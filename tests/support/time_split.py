"""Where the time of a deployment's rounds goes: its run directory and its agents' logs tell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from tests.support.runs import events_of


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeSplit:
    """Seconds of a round, each the median over all rounds of a training.

    Attributes:
        compute_s: In the clients' own code, of the slowest client.
        exchange_s: Waiting for peers inside a round, of the slowest client.
        agent_s: Our agent, the rest of its answer: socket, checks, keeping the answer.
        strategy_s: Our server: everything but waiting for Flower; with the checkpoint.
        flower_s: All the rest: Flower's messages on the links, its sleeps, a ClientApp's start.
        rounds: How many rounds were looked at.
    """

    compute_s: float
    exchange_s: float
    agent_s: float
    strategy_s: float
    flower_s: float
    rounds: int

    @property
    def ours_s(self) -> float:
        """Agent and strategy."""
        return self.agent_s + self.strategy_s

    def table(self) -> str:
        """Return it in lines."""
        names = ("compute", "exchange in the round", "ours: agent", "ours: strategy", "Flower")
        values = (
            *(self.compute_s, self.exchange_s),
            *(self.agent_s, self.strategy_s, self.flower_s),
        )
        lines = [
            f"{name:<22}{1000 * value:10.1f} ms" for name, value in zip(names, values, strict=True)
        ]
        return "\n".join([f"a round, median of {self.rounds}", *lines])


def split_of(run: Path, agent_logs: Sequence[Path]) -> TimeSplit:
    """Read what a finished training says of its rounds.

    Args:
        run: Its run directory.
        agent_logs: Of its clients; they hold this training alone.
    """
    rounds = [one for one in events_of(run) if one["event"] == "round" and one["seconds"]]
    answers = [_answers(log) for log in agent_logs]
    asked = sorted(set.intersection(*({*one} for one in answers)))
    by_round = [[one[place] for one in answers] for place in asked]
    waited_s = median(one["waited_s"] for one in rounds)
    return TimeSplit(
        compute_s=_slowest(by_round, "compute_s"),
        exchange_s=_slowest(by_round, "wait_s"),
        agent_s=median(max(map(_own, of_round)) for of_round in by_round),
        strategy_s=median(one["seconds"] - one["waited_s"] for one in rounds),
        flower_s=waited_s - _slowest(by_round, "total_s"),
        rounds=len(by_round),
    )


def _answers(log: Path) -> dict[tuple[int, int], dict[str, float]]:
    """Return by stage and round what an agent said of its answers to ``train.layer``."""
    found = {}
    for line in log.read_text(encoding="utf-8").splitlines():
        if " answered " not in line or "message=train_layer" not in line:
            continue
        facts = dict(word.split("=", 1) for word in line.split() if "=" in word)
        names = ("compute_s", "wait_s", "total_s")
        found[int(facts["stage"]), int(facts["round"])] = {n: float(facts[n]) for n in names}
    return found


def _slowest(by_round: Sequence[Sequence[dict[str, float]]], name: str) -> float:
    return median(max(one[name] for one in of_round) for of_round in by_round)


def _own(answer: dict[str, float]) -> float:
    return answer["total_s"] - answer["compute_s"] - answer["wait_s"]
