"""What a Prometheus server reads of an agent: the facts of its status, as figures without names.

No label has a client, a job, a key or an address: they are closed sets of words. What the status
does not show, where sums are masked, is not here either.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from retexo_fl.client.api import QUESTIONS
from retexo_fl.errors import RetexoError
from retexo_fl.exchange.link.reasons import Reason
from retexo_fl.version import __version__

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from retexo_fl.agent import wire
    from retexo_fl.agent.service import Outcome

Facts = Mapping[str, Any]
Answer = Callable[["wire.Request"], Awaitable["Outcome"]]

_BUG: Final = "bug"
_JOB_STATES: Final = ("waiting", "computing", "exchanging")
#: Each holds the ones before it.
_MEASURES: Final = ("frame", "link", "tls", "wire")


@dataclass(slots=True)
class Answers:
    """What this process has answered, by the name of the question; see :meth:`counting`."""

    answered: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=lambda: Counter({_BUG: 0}))
    seconds: dict[str, float] = field(
        default_factory=lambda: dict.fromkeys(("computing", "waiting"), 0.0)
    )

    def counting(self, answer: Answer) -> Answer:
        """Return the same, but counted."""

        async def counted(request: wire.Request) -> Outcome:
            try:
                outcome = await answer(request)
            except asyncio.CancelledError:
                raise
            except Exception as error:
                self.failed[type(error).__name__ if isinstance(error, RetexoError) else _BUG] += 1
                raise
            self.answered[request.message] += 1
            self.seconds["computing"] += outcome.compute_s
            self.seconds["waiting"] += outcome.wait_s
            return outcome

        return counted


class AgentMetrics:
    """An agent's figures, a collector of prometheus_client.

    Args:
        facts: Returns the facts of the agent's status.
        answers: Of its process.
        why_not_ready: Returns why it cannot take part; empty if it can.
    """

    def __init__(
        self, facts: Callable[[], Facts], answers: Answers, why_not_ready: Callable[[], str]
    ) -> None:
        self._facts = facts
        self._answers = answers
        self._why_not_ready = why_not_ready
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)
        # Memory, processor time, open files: under the names that every exporter has.
        ProcessCollector(registry=self._registry)

    def text(self) -> bytes:
        """Return everything in Prometheus' text format."""
        text: bytes = generate_latest(self._registry)
        return text

    def collect(self) -> Iterator[Metric]:
        """Yield the families of metrics."""
        facts = self._facts()
        yield _gauge("build_info", "1; the version of the package.", [(1, __version__)], "version")
        is_ready = 0 if self._why_not_ready() else 1
        yield _gauge("ready", "1 if the agent can take part, as /ready says.", [(is_ready,)])
        yield from self._of_work(facts)
        yield from _of_budgets(facts)
        yield from _of_links(facts)
        yield from _of_bytes(facts)

    def _of_work(self, facts: Facts) -> Iterator[Metric]:
        states = Counter(job["state"] for job in facts["jobs"])
        yield _gauge(
            "jobs",
            "Trainings and predictions under way, by what they do.",
            ((states[state], state) for state in _JOB_STATES),
            "state",
        )
        idle_s = min((job["last_message_s"] for job in facts["jobs"]), default=None)
        if idle_s is not None:
            yield _gauge(
                "idle_seconds", "Since the last question of any job under way.", [(idle_s,)]
            )
        yield _counter(
            "answers",
            "Questions that this process answered, by name; train_layer is a round.",
            ((self._answers.answered[name], name) for name in QUESTIONS),
            "question",
        )
        yield _counter(
            "failures",
            "Questions that this process did not answer, by the class of the error.",
            ((count, name) for name, count in sorted(self._answers.failed.items())),
            "error",
        )
        yield _counter(
            "answering_seconds",
            "Of answers: computing here, and waiting for peers.",
            ((seconds, what) for what, seconds in self._answers.seconds.items()),
            "doing",
        )
        yield _gauge(
            "peak_resident_memory_bytes",
            "Most memory that the process has had at once.",
            [(facts["memory"]["peak_rss_bytes"],)],
        )


def _of_budgets(facts: Facts) -> Iterator[Metric]:
    """Yield what the part has given away in all trainings, and what its owner allows."""
    questions, noised, rows = facts["questions"], facts["epsilon"], facts["row_epsilon"]
    yield _gauge(
        "questions_answered",
        "About this part, in all trainings and starts together.",
        [(questions["answered"],)],
    )
    yield _gauge("questions_limit", "most-questions of agent.toml.", [(questions["most"],)])
    limits = {"sums": noised["most"], "rows": rows["most"]}
    of_sums = noised["spent"][noised["part"]]
    # One that is beyond what is computed has no number.
    spent = {"sums": math.inf if of_sums is None else of_sums, "rows": rows["spent"]}
    yield _gauge(
        "epsilon_spent",
        "Given away by noised sums, and by noised rows, in all trainings together.",
        ((value, of) for of, value in spent.items()),
        "of",
    )
    yield _gauge(
        "epsilon_limit",
        "max-epsilon and max-row-epsilon of agent.toml, where they are set.",
        ((most, of) for of, most in limits.items() if most),
        "of",
    )


def _of_links(facts: Facts) -> Iterator[Metric]:
    peers = facts["peers"]
    states = Counter(
        "connected" if peer.get("connected") else "away" if peer.get("last_met") else "never_met"
        for peer in peers
    )
    yield _gauge(
        "peers",
        "Other clients, by the link to them.",
        ((states[state], state) for state in ("connected", "away", "never_met")),
        "link",
    )
    for name, what in (("owed", "for peers"), ("awaited", "from peers")):
        blocks = sum(peer[name]["blocks"] for peer in peers)
        yield _gauge(f"{name}_blocks", f"Blocks of vectors {what} that have not come.", [(blocks,)])
    refused = Counter(dict.fromkeys(map(str, Reason), 0))
    for peer in peers:
        refused.update(peer.get("refusals", {}))
    refused.update(facts["strangers"])
    yield _counter(
        "refusals",
        "What peers and strangers were refused, by reason.",
        ((count, reason) for reason, count in sorted(refused.items())),
        "reason",
    )


def _of_bytes(facts: Facts) -> Iterator[Metric]:
    """Yield bytes, of which there are none where sums are masked."""
    channels = [one for peer in facts["peers"] for one in peer.get("channels", {}).values()]
    lines = []
    for way in ("sent", "received"):
        for measure in _MEASURES:
            sizes = [one[f"{measure}_bytes_{way}"] for one in channels]
            if None not in sizes:
                lines.append((sum(sizes), way, measure))
    if lines:
        yield _counter(
            "peer_bytes",
            "To and from all peers: frames of vectors, with the link's messages, with TLS, and "
            "with the network's headers; each holds the one before it.",
            lines,
            *("direction", "measure"),
        )
    if facts["flower"] is not None:
        flower = facts["flower"]
        yield _counter(
            "flower_bytes",
            "Of the SuperNode's connection: its stream, and with the network's headers.",
            [
                (flower[way][measure], direction, measure)
                for way, direction in (("up", "sent"), ("down", "received"))
                for measure in ("payload", "wire")
            ],
            *("direction", "measure"),
        )


_Lines = Iterable[tuple[Any, ...]]


def _gauge(name: str, told: str, lines: _Lines, *labels: str) -> Metric:
    return _filled(GaugeMetricFamily(f"retexo_agent_{name}", told, labels=labels), lines)


def _counter(name: str, told: str, lines: _Lines, *labels: str) -> Metric:
    return _filled(CounterMetricFamily(f"retexo_agent_{name}", told, labels=labels), lines)


def _filled(
    family: GaugeMetricFamily | CounterMetricFamily, lines: _Lines
) -> GaugeMetricFamily | CounterMetricFamily:
    for value, *labels in lines:
        family.add_metric(labels, value)
    return family
