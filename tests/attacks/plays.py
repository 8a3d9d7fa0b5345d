"""What a malicious server tries, and what it makes of the answers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, combinations
from typing import Any, Final

import numpy as np

from retexo_fl.client.api import (
    CollectRequest,
    PublishRequest,
    Request,
    TrainRequest,
    chain_digest,
)
from retexo_fl.training.stage_model import ModelShape, flat_weights, named_weights, num_weights
from tests.attacks.federation import (
    CLIENTS,
    COLLUDERS,
    OTHERS,
    PEER,
    VICTIM,
    Attacked,
    SocketClient,
    refusal,
    rows_that_are_not_zero,
    update_in_the_clear,
    values_of,
)
from tests.support.adversary import Adversary

#: Rows of a peer in another scale, as a configuration of its own makes them.
_OTHER_ROWS: Final = {"feature-normalisation": "row"}
#: Rows of two columns cross before the second layer.
_NARROW: Final = {"layers": 2, "hidden": 2}
#: No node has as much of a feature.
_MOST_FEATURE: Final = 1e3
_BALANCED: Final = {"class-weights": "balanced"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Try:
    """One way that was tried.

    Attributes:
        told: What the agent said, or what the answers add up to.
        read: What of one client was computed from the answers, exactly; empty if nothing.
    """

    told: str
    read: str = ""


NOISE: Final = Try(told="it adds up to noise")


def _counts_read(found: np.ndarray, server: Adversary, client: int) -> Try:
    """Compare what was computed with a client's class counts."""
    truth = counted(server, client)
    if np.array_equal(found[: len(truth)], truth):
        return Try(told="", read=f"client {client} counts {truth.tolist()} nodes by class and use")
    return NOISE


def counted(server: Adversary, client: int) -> np.ndarray:
    """Return a client's class counts of the uses that its cohort's sums are of."""
    by_use = server.class_counts(client).reshape(3, -1)
    uses = server.agreement.cohort_of(client).uses
    kept = [use in uses for use in ("train", "validation", "test")]
    found: np.ndarray = (by_use * np.array(kept)[:, None]).ravel()
    return found


def _update_read(found: np.ndarray, truth: np.ndarray) -> Try:
    """Compare what was computed with how a client's update is, or differs."""
    if np.any(truth) and np.allclose(found, truth, rtol=1e-3, atol=1e-3):
        size = float(np.abs(truth).max())
        return Try(told="", read=f"{len(truth)} values of client {VICTIM}, up to {size:.3g}")
    return NOISE


def _numbers(server: Adversary, request: TrainRequest, among: Iterable[int]) -> np.ndarray:
    return values_of(request, server.update(request, among))


def check_sums(agents: Attacked) -> None:
    """Check that sums over all are what they count: else nothing that follows shows anything."""
    server = agents.job()
    server.meet()
    everyone, request = range(CLIENTS), server.train()
    total = np.sum([counted(server, client) for client in everyone], axis=0)
    assert server.asked(server.labels(), everyone).tolist() == total.tolist()
    updates = [update_in_the_clear(server, request, client) for client in everyone]
    found = _numbers(server, request, everyone)
    assert np.allclose(found, np.sum(updates, axis=0), rtol=1e-3, atol=1e-3)


# ---- who is added up ----------------------------------------------------------------------------


def other_attempt(agents: Attacked) -> Iterable[Try]:
    """A1."""
    server = agents.job()
    server.meet()
    whole = server.asked(server.labels(), range(CLIENTS))
    server.greet(2)
    _, said = refusal(lambda: server.hand_out(2, OTHERS))
    yield Try(told=said)
    if said:
        server.hand_out(2, range(CLIENTS))
    less = server.asked(server.labels(attempt=2), OTHERS)
    yield _counts_read(whole - less, server, VICTIM)


def said_to_be_opened(agents: Attacked) -> Iterable[Try]:
    """A2."""
    server = agents.job()
    server.meet()
    whole = server.asked(server.labels(number=1), range(CLIENTS))
    for forged in (
        {"mask-opens": True},
        {"mask-asked": {"hex": "1e"}},
        {"message": "open"},
        {"message": "finish"},
    ):
        yield from _forged(server, server.labels(number=2), forged, whole)
    yield _counts_read(whole - server.asked(server.labels(number=3), OTHERS), server, VICTIM)


def other_purpose(agents: Attacked) -> Iterable[Try]:
    """A3."""
    server = agents.job()
    server.meet()
    whole = server.asked(server.train(), range(CLIENTS))
    yield from _forged(server, server.evaluate("validation"), {"mask-beside": True}, whole)
    less = server.asked(server.evaluate("validation", number=1), OTHERS)
    use = server.nodes(VICTIM, "validation")
    at_once = server.asked(server.evaluate("validation", number=2), range(CLIENTS))
    is_read = at_once[0] - less[0] == use
    yield Try(told="", read=f"{use} validation nodes of client {VICTIM}") if is_read else NOISE


def one_place_twice(agents: Attacked) -> Iterable[Try]:
    """A4."""
    server = agents.job()
    server.meet()
    request = server.train(number=2)
    whole = _numbers(server, request, range(CLIENTS))
    yield from _forged(server, request, {"mask-trial": 1}, whole)
    truth = update_in_the_clear(server, request, VICTIM)
    yield _update_read(whole - _numbers(server, request, OTHERS), truth)
    server.weights = server.weights + np.float32(1)
    for number in (2, 1):
        other = server.train(number=number)
        less, said = refusal(partial(_numbers, server, other, OTHERS))
        yield Try(told=said) if less is None else _update_read(whole - less, truth)


def rounds_of_training(agents: Attacked) -> Iterable[Try]:
    """A5."""
    server = agents.job()
    server.meet()
    yield from _forged(server, server.train(), {"mask-opens": True}, np.zeros(1))
    request = server.train(number=2)
    whole = _numbers(server, request, range(CLIENTS))
    less = _numbers(server, server.train(number=3), OTHERS)
    yield _update_read(whole - less, update_in_the_clear(server, request, VICTIM))


def neighbours_missing(agents: Attacked) -> Iterable[Try]:
    """A6."""
    server = agents.job()
    server.greet(1)
    for cohort in ((VICTIM, 1), (VICTIM, 1, 2)):
        _, said = refusal(partial(server.hand_out, 1, cohort))
        yield Try(told=said)
    server = agents.job()
    server.meet()
    yield from _of_some(server, server.labels())


def openers_by_luck(agents: Attacked) -> Iterable[Try]:
    """A7."""
    server = agents.job()
    server.meet()
    for number in range(1, 7):
        request = server.labels(number=number)
        for forged in ({"message": "open"}, {"mask-trial": number}):
            yield from _forged(server, request, forged, np.zeros(1))
        yield from _of_some(server, request)


def _forged(
    server: Adversary, request: Request[Any], forged: dict[str, Any], whole: np.ndarray
) -> Iterable[Try]:
    """Say more than a question holds; where that is answered, see what it tells."""
    clients = [client for client in server.clients if isinstance(client, SocketClient)]
    for client in clients:
        client.forged = forged
    less, said = refusal(lambda: server.asked(request, OTHERS))
    for client in clients:
        client.forged = {}
    yield Try(told=said) if less is None else _counts_read(whole - less, server, VICTIM)


def _of_some(server: Adversary, request: Request[Any]) -> Iterable[Try]:
    """Ask all, and add up the answers of each set of fewer."""
    answers = server.ask(request, range(CLIENTS))
    sets = chain.from_iterable(combinations(range(CLIENTS), size) for size in range(1, CLIENTS))
    for some in sets:
        truth = np.sum([counted(server, client) for client in some], axis=0)
        found = server.counts(request, [answers[client] for client in some])
        if np.array_equal(found[: len(truth)], truth):
            yield Try(told="", read=f"the sum over clients {some} alone")
    yield NOISE


# ---- what refusals and clear numbers tell -------------------------------------------------------


def refusals(agents: Attacked) -> Iterable[Try]:
    """A8: halve what a value may be, by what is refused."""
    yield _class_histogram(agents)


def _class_histogram(agents: Attacked) -> Try:
    """Weigh one class so that its loss is too large if it has so many nodes."""
    server = agents.job(_BALANCED)
    server.meet()
    classes = server.parts[VICTIM].num_classes
    most, asked, found = 2.0**62 // CLIENTS * 2.0**-20, 0, []
    for kind in range(classes):

        def is_refused(count: int, kind: int = kind) -> bool:
            nonlocal asked
            asked += 1
            facts = [0.0] * classes
            # Without weights every class is as likely.
            facts[kind] = most / (count + 0.5) / float(np.log(classes))
            request = server.evaluate("validation", number=asked, facts=tuple(facts))
            answer, _ = refusal(lambda: server.clients[VICTIM].ask(request))
            return answer is None

        found.append(_halved(is_refused, 64))
    truth = server.class_counts(VICTIM).reshape(3, -1)[1].tolist()
    if found == truth:
        return Try(told="", read=f"client {VICTIM}: {truth} by class, in {asked} questions")
    return Try(told="it answers the same way whatever its losses are")


def _halved(is_refused: Callable[[int], bool], beyond: int) -> int:
    """Return the fewest that is not refused."""
    low, high = 0, beyond
    while low < high:
        middle = (low + high) // 2
        if is_refused(middle):
            low = middle + 1
        else:
            high = middle
    return low


def zeros_of_colluders(agents: Attacked) -> Iterable[Try]:
    """A9: all test nodes of a cohort are the victim's or of those who help the server."""
    server = agents.job()
    server.meet()
    found = server.asked(server.labels(), range(CLIENTS))
    known = sum(server.class_counts(client) for client in COLLUDERS)
    of_test = slice(2 * server.parts[VICTIM].num_classes, None)
    left, truth = (found - known)[of_test], server.class_counts(VICTIM)[of_test]
    if np.array_equal(left, truth):
        yield Try(told="", read=f"client {VICTIM} has {truth.tolist()} test nodes by class")
    yield Try(told=f"the sum over test nodes is {found[of_test].tolist()}")


def zeros_where_none_is_expected(agents: Attacked) -> Iterable[Try]:
    """A9, where owners agreed that nobody works with the server."""
    agents.agree(tolerated=0)
    yield from zeros_of_colluders(agents)


def state_put_back(agents: Attacked) -> Iterable[Try]:
    """A10: the same sum before and after, on other rows of one peer."""
    server = agents.job()
    server.greet(1)
    server.hand_out(1, range(CLIENTS))
    request = server.train()
    with agents.put_back(VICTIM):
        _send_rows(agents, server)
        first = server.update(request, [VICTIM])
    other = agents.same_job(server, {PEER: _OTHER_ROWS})
    _, said = refusal(lambda: _send_rows(agents, other))
    if said:
        # Rows that owners who work with it make by hand would come; here the same come again.
        _send_rows(agents, server)
    again, told = refusal(lambda: server.update(request, [VICTIM]))
    if again is None:
        yield Try(told=told)
        # By the keys of its new process, which the others believe, too.
        server.greet(1, [VICTIM])
        server.hand_out(1, range(CLIENTS), to=[VICTIM])
        again = server.update(request, [VICTIM])
    truth = update_in_the_clear(server, request, VICTIM) - update_in_the_clear(
        server, request, VICTIM, of_one={PEER: _OTHER_ROWS}
    )
    yield _update_read(values_of(request, first - again), truth)
    yield Try(told=said)


def _send_rows(agents: Attacked, server: Adversary, senders: Sequence[int] = OTHERS) -> None:
    """Have peers forget a job and begin it again, so that they send the victim their rows."""
    for peer in senders:
        agents.forget(server, peer)
    server.greet(1, senders)
    for peer in senders:
        server.clients[peer].ask(PublishRequest(ticket=server.ticket()))
    server.clients[VICTIM].ask(
        CollectRequest(ticket=server.ticket(), wait_s=server.arrival_s, close=True)
    )


def configurations(agents: Attacked) -> Iterable[Try]:
    """A11: one client takes steps, the others as good as none; then one peer sends other rows."""
    steps = {"local-steps": 2, "local-optimizer": "sgd", "local-learning-rate": 1e-30}
    moving = {"local-learning-rate": 1e-2}
    server = agents.job(steps, {VICTIM: moving})
    server.arrival_s = 3.0
    _, said = refusal(server.meet)
    if said:
        yield Try(told=said)
    else:
        request = server.train()
        found = _numbers(server, request, range(CLIENTS))
        yield _update_read(
            found, update_in_the_clear(server, request, VICTIM, of_one={VICTIM: moving})
        )
    yield _other_rows(agents)


def _other_rows(agents: Attacked) -> Try:
    """Compare two jobs, in one of which a peer first has a configuration of its own."""
    honest = agents.job()
    honest.meet()
    request = honest.train()
    whole = _numbers(honest, request, range(CLIENTS))
    server = agents.job()
    server.greet(1, [VICTIM])
    other = agents.same_job(server, {PEER: _OTHER_ROWS})
    other.greet(1, [PEER])
    sending = PublishRequest(ticket=server.ticket())
    _, said = refusal(lambda: other.clients[PEER].ask(sending))
    if said:
        return Try(told=said)
    agents.forget(server, PEER)
    server.greet(1)
    _, said = refusal(lambda: server.hand_out(1, range(CLIENTS)))
    if said:
        return Try(told=said)
    _, said = refusal(server.exchange)
    if said:
        return Try(told=said)
    asked = server.train()
    less = _numbers(server, asked, range(CLIENTS))
    truth = update_in_the_clear(
        server, asked, VICTIM, of_one={PEER: _OTHER_ROWS}
    ) - update_in_the_clear(server, asked, VICTIM)
    return _update_read(less - whole, truth)


def bytes_in_the_clear(agents: Attacked) -> Iterable[Try]:
    """A12: weights of the server's choice make rows zero, or not, by one feature."""
    reached = []
    for least in (_MOST_FEATURE, 0.1):
        server = agents.job(_NARROW)
        server.meet()
        request = _threshold(server, least)
        client = server.clients[VICTIM]
        client.ask(request)
        assert isinstance(client, SocketClient)
        told = _numbers_in({**client.told(), **agents.layers(VICTIM, server, 1)})
        reached.append((rows_that_are_not_zero(server, request, VICTIM), told))
    (none, before), (truth, told) = reached
    assert none < truth
    for name, number in told.items():
        if number - before.get(name, 0) == 4 * truth:
            yield Try(told="", read=f"{truth} rows of client {VICTIM} are beyond it, by {name}")
    yield Try(told=f"of other rows it tells the same: {', '.join(told) or 'no number'}")


def _threshold(server: Adversary, least: float) -> PublishRequest:
    """Have rows be zero but where what a node and its neighbours have of a feature is beyond it."""
    shape = ModelShape.of_part(server.config, server.parts[0])
    named = named_weights(shape, 0, np.zeros(num_weights(shape, 0), np.float32))
    named["layer.weight"][0, 0] = 1.0
    named["layer.bias"][0] = -least
    # Of a row's two values the larger one becomes 1, the other -1, and then 0.
    named["norm.weight"][0] = 1.0
    weights = flat_weights(shape, 0, named)
    ticket = server.ticket(stage=1, digest=chain_digest(server.first(), weights))
    return PublishRequest(ticket=ticket, previous_digest=server.first(), weights=weights)


def _numbers_in(values: dict[str, Any]) -> dict[str, float]:
    return {
        name: value
        for name, value in values.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }


def missing_rows(agents: Attacked) -> Iterable[Try]:
    """A13."""
    honest = agents.job()
    honest.meet()
    whole = _numbers(honest, honest.train(), range(CLIENTS))
    server = agents.job()
    server.greet(1)
    server.hand_out(1, range(CLIENTS))
    for peer in OTHERS:
        if peer != PEER:
            server.clients[peer].ask(PublishRequest(ticket=server.ticket()))
    asked = CollectRequest(ticket=server.ticket(), wait_s=1.0, close=True)
    _, said = refusal(lambda: server.clients[VICTIM].ask(asked))
    yield Try(told=said)
    answer, said = refusal(lambda: server.clients[VICTIM].ask(server.train()))
    yield Try(told=said)
    if answer is None:
        return
    server.exchange()
    request = server.train()
    truth = update_in_the_clear(server, request, VICTIM, without=[PEER]) - update_in_the_clear(
        server, request, VICTIM
    )
    yield _update_read(_numbers(server, request, range(CLIENTS)) - whole, truth)
