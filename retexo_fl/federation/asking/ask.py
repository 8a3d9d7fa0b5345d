"""What a round of the server is: a generator that asks clients, and ends with a result.

    def count_nodes(clients: Sequence[int]) -> Round[int]:
        answers = yield Ask.of(clients, HelloRequest(ticket=ticket), stage=-1, purpose="hello")
        return sum(answer.nodes for _, answer in answers)

A round is free of Flower, and of how messages are sent, repeated and waited for:
:meth:`.Messenger.run` carries it out, or the hooks of the strategy do. One that needs more, for
example what the missing left behind, yields again. Who is away, what clients hold, and how sums are
masked is not its business either: :func:`through` makes of a round another one, which asks
otherwise (``federation/wrappers/``). Of masks it sees that an answer may be of several clients.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias, TypeVar

from retexo_fl.client.answers import SumFacts
from retexo_fl.client.api import Request
from retexo_fl.errors import RemoteProtocolError

T = TypeVar("T")

#: A client, or those whose answers came as one sum.
Who: TypeAlias = int | tuple[int, ...]
#: Clients with their answers, in client order, each yielded as soon as its turn comes. Of fewer
#: clients than were asked where that is allowed. Of sums that are masked, one answer and a
#: :data:`Who` of several clients.
Answers: TypeAlias = Iterable[tuple[Any, Any]]
#: Yields what to ask next, is sent the answers, which it reads to their end, and returns a result.
Round: TypeAlias = Generator["Ask", Answers, T]
#: Makes of a round another one, which asks otherwise; its result is the same.
Wrapper: TypeAlias = Callable[[Round[Any]], Round[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What a round asks next.

    Attributes:
        requests: By client, ascending. A request that several clients share is built once.
        stage: Stage index for the ledger, -1 for none.
        purpose: As in :class:`.Account`, for the ledger.
        counted: Clients of whom enough must answer; all that are asked if None.
        within_s: In a deployment, continue then with the answers so far; ``counted`` is empty.
        sums: Facts by which answers declare what they add up (:func:`.sums_of`), where their sum
            over clients is enough for the round; None where answers are no sums.
        again: Makes the same requests with whole weights, for clients that do not hold those that
            a request names; None where requests name none.
        all_again: If any client lacks weights, all are asked again: peers have their vectors.
        ends: Clients may forget the job with their answer.
        cohorts: Where answers are masked, who of those that are asked are added up together: of a
            cohort all answers count, or none. Empty where they are not masked.
    """

    requests: Mapping[int, Request[Any]]
    stage: int
    purpose: str
    counted: frozenset[int] | None = None
    within_s: float | None = None
    sums: SumFacts | None = None
    again: Callable[[], Mapping[int, Request[Any]]] | None = None
    all_again: bool = False
    ends: bool = False
    cohorts: tuple[tuple[int, ...], ...] = ()

    def among(self, clients: Collection[int]) -> Ask:
        """Return what is asked of these clients alone."""
        wanted = {*clients}
        if wanted.issuperset(self.requests):
            return self
        requests = {client: item for client, item in self.requests.items() if client in wanted}
        cohorts = (tuple(c for c in cohort if c in requests) for cohort in self.cohorts)
        return replace(
            self,
            requests=requests,
            counted=None if self.counted is None else self.counted.intersection(requests),
            cohorts=tuple(filter(None, cohorts)),
        )

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


def through(asking: Round[T], handler: Callable[[Ask], Round[Answers]]) -> Round[T]:
    """Return a round whose questions are asked in another way.

    Args:
        asking: The round.
        handler: Makes of each of its questions those that are asked instead, and of their answers
            the one that the round gets. What is raised meanwhile, the round gets to see.
    """
    try:
        ask = next(asking)
        while True:
            try:
                answers = yield from handler(ask)
            except Exception as error:
                ask = asking.throw(error)
            else:
                ask = asking.send(answers)
    except StopIteration as end:
        result: T = end.value
        return result
    finally:
        asking.close()


def members(who: Who) -> tuple[int, ...]:
    """Return the clients, ascending."""
    return (who,) if isinstance(who, int) else who


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
