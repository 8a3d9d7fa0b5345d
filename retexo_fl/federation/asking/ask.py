"""What a round of the server is: a generator that asks clients, and ends with a result.

    def count_nodes(clients: Sequence[int]) -> Round[int]:
        answers = yield Ask.of(clients, HelloRequest(ticket=ticket), stage=-1, purpose="hello")
        return sum(answer.nodes for _, answer in answers)

A round is free of Flower and time-outs: :meth:`.Messenger.run` carries it out, and Flower's own
loop does so by the strategy's hooks. One that needs more, for example what the missing left behind,
yields again.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, TypeVar

from retexo_fl.client.api import Request
from retexo_fl.errors import RemoteProtocolError

T = TypeVar("T")

#: Clients with their answers, in client order, each yielded as soon as its turn comes. Of fewer
#: clients than were asked where that is allowed.
Answers: TypeAlias = Iterable[tuple[int, Any]]
#: Yields what to ask next, is sent the answers, which it reads to their end, and returns a result.
Round: TypeAlias = Generator["Ask", Answers, T]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What a round asks next.

    Attributes:
        requests: By client, ascending. A request that several clients share is built once.
        stage: Stage index for the ledger, -1 for none.
        purpose: For the ledger: ``introduce``, ``basis``, ``publish``, ``collect``, ``relay``,
            ``gram``, ``train``, ``evaluate``, ``predict``, ``recipe``.
        counted: Clients of whom enough must answer; all that are asked if None.
        within_s: In a deployment, continue then with the answers so far; ``counted`` is empty.
        cohorts: Where answers are masked, who of those that are asked are added up together: of a
            cohort all answers count, or none. Empty where they are not masked.
    """

    requests: Mapping[int, Request[Any]]
    stage: int
    purpose: str
    counted: frozenset[int] | None = None
    within_s: float | None = None
    cohorts: tuple[tuple[int, ...], ...] = ()

    @classmethod
    def of(
        cls,
        clients: Iterable[int],
        request: Request[Any],
        *,
        stage: int,
        purpose: str,
        counted: frozenset[int] | None = None,
        within_s: float | None = None,
    ) -> Ask:
        """Ask clients, ascending, the same."""
        return cls(
            requests=dict.fromkeys(clients, request),
            stage=stage,
            purpose=purpose,
            counted=counted,
            within_s=within_s,
        )


#: In place of a client's index: that of several clients whose answers came as one sum.
SUM: Final = -1


def subject(client: object) -> str:
    """Return how an error names a client, or several whose answers came as one sum."""
    is_sum = client == SUM or isinstance(client, tuple)
    return "the sum over clients" if is_sum else f"client {client}"


@contextmanager
def named(client: object) -> Iterator[None]:
    """Say whose answer is wrong.

    Raises:
        RemoteProtocolError: What was raised, with the client before it.
    """
    try:
        yield
    except RemoteProtocolError as error:
        raise RemoteProtocolError(f"{subject(client)}: {error}") from error
