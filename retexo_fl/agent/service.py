"""What becomes of a question: asked once or twice, it is computed once, and never in the way.

Runs in the event loop's thread; everything that touches a client runs in the one thread that
computes (:class:`ComputeThread`), so that the sockets are served meanwhile. A round that exchanges
leaves that thread while it waits for its peers, so that two trainings cannot wait for each other.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, TypeVar

from retexo_fl.agent import wire
from retexo_fl.agent.carrier_path import Arrivals
from retexo_fl.agent.jobs import AgentJobs
from retexo_fl.agent.peer_finding import Peering
from retexo_fl.channels import BlockKey
from retexo_fl.client.api import (
    CollectRequest,
    EvaluateAnswer,
    EvaluateRequest,
    HelloAnswer,
    HelloRequest,
    IntroduceRequest,
    PredictedRequest,
    RecipeRequest,
    RelayRequest,
    SummaryRequest,
    Ticket,
    TrainAnswer,
    TrainRequest,
    is_lacking,
)
from retexo_fl.errors import (
    ExchangeIncomplete,
    LocalProtocolError,
    RemoteProtocolError,
    StaleAttempt,
)

if TYPE_CHECKING:
    from retexo_fl.agent.job import AgentJob
    from retexo_fl.client.inner_exchanges import RoundRunner

Result = TypeVar("Result")

#: A wait for peers looks up so often, whether it is still wanted.
_LOOK_UP_S: Final = 0.5
#: Rounds that may wait for peers at a time; as many as there may be jobs.
_WAITERS: Final = 16
_COLLECT_PAUSE_S: Final = 0.1
_TAKEN_PAUSE_S: Final = 0.01
_MOST_COLLECT_WAIT_S: Final = 30.0


@dataclass(slots=True, kw_only=True)
class Outcome:
    """An answer and what it took.

    Attributes:
        parts: The answer as it goes over the socket.
        compute_s: Seconds in the client's own code.
        wait_s: Seconds of waiting for peers.
    """

    parts: wire.Parts = field(default_factory=list)
    compute_s: float = 0.0
    wait_s: float = 0.0


@dataclass(slots=True, kw_only=True)
class _Running:
    """A question that is being answered."""

    request: wire.Request
    #: Set when another question of the job has come: the server no longer waits for this one.
    superseded: asyncio.Event = field(default_factory=asyncio.Event)
    computation: asyncio.Task[Outcome] | None = None
    outcome: Outcome = field(default_factory=Outcome)


class AgentService:
    """Answers requests, those of a job one after the other."""

    def __init__(
        self,
        jobs: AgentJobs,
        compute: ComputeThread,
        depot: Arrivals,
        *,
        peering: Peering,
    ) -> None:
        self._peering = peering
        self._jobs = jobs
        self._compute = compute
        self._depot = depot
        self._running: dict[str, _Running] = {}
        self._returning: asyncio.Task[None] | None = None
        self._waiters = ThreadPoolExecutor(_WAITERS, thread_name_prefix="arrivals")

    def expect(self, announced: wire.Announcement) -> None:
        """Refuse what will not be answered, before its body is read.

        Raises:
            LocalProtocolError: It is no question for an agent, or of no job that is known here.
            StaleAttempt: As :meth:`.AgentJobs.expect`.
        """
        if isinstance(announced.asked, SummaryRequest | RecipeRequest):
            raise LocalProtocolError(
                f"{announced.message}: the agent of a client that has its part shares no summary; "
                "expected `retexo features share` in its place"
            )
        if not isinstance(announced.asked, PredictedRequest):
            self._jobs.expect(announced.ticket, announced.message)

    async def answer(self, request: wire.Request) -> Outcome:
        """Answer a request; one that is asked again while it is computed shares the answer.

        The caller may disconnect: a computation that has started is finished.

        Raises:
            RetexoError: The named failure.
        """
        if isinstance(asked := request.asked, PredictedRequest):
            told = await self._compute.run(lambda: self._jobs.predicted(asked))
            return Outcome(parts=wire.encode_answer(told))
        running = self._running.get(request.ticket.job)
        if running is None or running.request.identity != request.identity:
            _check_not_older(request.ticket, running)
            running = self._start(request, running)
        assert running.computation is not None
        return await asyncio.shield(running.computation)

    async def forget(self, job: str) -> bool:
        """Drop a job; a round of it that waits for peers ends."""
        running = self._running.get(job)
        if running is not None and running.computation is not None:
            running.superseded.set()
            await asyncio.wait({running.computation})
        was_known = await self._compute.run(lambda: self._jobs.forget(job))
        self._return_memory()
        return was_known

    def close(self) -> None:
        """Stop waiting.

        Callers get no answer, which would be final: they ask again when the agent is back.
        """
        for running in self._running.values():
            assert running.computation is not None
            running.computation.cancel()
        self._waiters.shutdown(wait=False, cancel_futures=True)

    def _start(self, request: wire.Request, previous: _Running | None) -> _Running:
        running = _Running(request=request)
        running.computation = asyncio.create_task(self._in_turn(running, previous))
        self._running[request.ticket.job] = running
        return running

    async def _in_turn(self, running: _Running, previous: _Running | None) -> Outcome:
        try:
            if previous is not None and previous.computation is not None:
                previous.superseded.set()
                await asyncio.wait({previous.computation})
            return await self._work(running)
        finally:
            if self._running.get(running.request.ticket.job) is running:
                del self._running[running.request.ticket.job]
            self._return_memory()

    def _return_memory(self) -> None:
        """Return what a job has taken that is over, after the answer that ended it."""
        if self._jobs.has_left:
            self._returning = asyncio.create_task(self._compute.run(self._jobs.return_memory))

    async def _work(self, running: _Running) -> Outcome:
        request, outcome = running.request, running.outcome
        job = await self._compute.run(lambda: self._jobs.find(request))
        if isinstance(job, list):
            outcome.parts = job
            return outcome
        known = job.kept(request)
        if known is not None:
            outcome.parts = known
            return outcome
        job.state = "computing"
        try:
            answer = await self._ask(job, running)
            outcome.parts = wire.encode_answer(answer)
            if not is_lacking(answer):
                await self._compute.run(lambda: self._jobs.end(job, request, outcome.parts))
        finally:
            job.state = "waiting"
        return outcome

    async def _ask(self, job: AgentJob, running: _Running) -> object:
        request = running.request
        match request.asked:
            case RelayRequest() if not job.config.relay:
                raise RemoteProtocolError("got parcels of peers; expected none with relay = false")
            case IntroduceRequest() | RelayRequest() as asked:
                return await self._peering.answer(asked)
            case HelloRequest() if request.config.get("introductions"):
                return await self._hello(job, running)
            case TrainRequest() as asked if job.exchanges_in_rounds:
                return await self._train(job, running, asked)
            case EvaluateRequest() as asked if job.exchanges_in_rounds:
                return await self._evaluate(job, running, asked)
            case CollectRequest() as asked if asked.wait_s > 0:
                return await self._collect(job, running, asked)
            case _:
                return await self._timed(running, lambda: job.answer(request))

    async def _hello(self, job: AgentJob, running: _Running) -> object:
        answer = await self._timed(running, lambda: job.answer(running.request))
        assert isinstance(answer, HelloAnswer)
        return replace(answer, member=self._peering.introductions.own_entry())

    async def _collect(self, job: AgentJob, running: _Running, asked: CollectRequest) -> object:
        """Look again until all is there; other jobs compute meanwhile."""
        deadline = time.monotonic() + min(asked.wait_s, _MOST_COLLECT_WAIT_S)
        look = replace(asked, close=False)
        answer = await self._timed(running, lambda: job.collect(look))
        while not (answer.complete or running.superseded.is_set()) and time.monotonic() < deadline:
            await asyncio.sleep(_COLLECT_PAUSE_S)
            answer = await self._timed(running, lambda: job.collect(look))
        if answer.complete or not asked.close:
            return answer
        return await self._timed(running, lambda: job.collect(asked))

    async def _train(self, job: AgentJob, running: _Running, asked: TrainRequest) -> TrainAnswer:
        runner = await self._timed(running, lambda: job.train_runner(asked))
        await self._drive(job, running, runner)
        return await self._timed(running, lambda: job.finished(asked, runner))

    async def _evaluate(
        self, job: AgentJob, running: _Running, asked: EvaluateRequest
    ) -> EvaluateAnswer:
        runner = await self._timed(running, lambda: job.evaluate_runner(asked))
        await self._drive(job, running, runner)
        if asked.last:
            await self._until_taken(job, running, runner)
        return await self._timed(running, lambda: job.finished(asked, runner))

    async def _drive(self, job: AgentJob, running: _Running, runner: RoundRunner[Any]) -> None:
        """Run a round to its end, out of the compute thread while it waits for peers."""
        deadline = time.monotonic() + job.config.message_timeout_s
        while awaited := await self._timed(running, runner.advance):
            job.state = "exchanging"
            begun = time.monotonic()
            await self._wait(awaited, deadline, running, runner.place)
            running.outcome.wait_s += time.monotonic() - begun
            job.state = "computing"
        await self._compute.run(job.end_round)

    async def _until_taken(
        self, job: AgentJob, running: _Running, runner: RoundRunner[Any]
    ) -> None:
        """Wait until the peers have what was sent in a job's last round: it goes with the job.

        So do notices and grants, without which a peer waits for what it has sent to be taken.
        """
        deadline = time.monotonic() + job.config.message_timeout_s
        peers = [plan.peer for plan in job.client.crossing.plan.peers]
        while untaken := [
            *job.untaken(runner),
            *(
                peer
                for peer in peers
                if any(offer.key.job == job.name for offer in self._depot.offers(peer))
            ),
        ]:
            if running.superseded.is_set():
                raise StaleAttempt(f"{runner.place}: superseded by a later message")
            if time.monotonic() > deadline:
                raise ExchangeIncomplete(
                    f"{runner.place}: clients {', '.join(map(str, untaken))} did not acknowledge "
                    "their vectors within message-timeout-s; see `retexo agent status` on each "
                    "machine"
                )
            await asyncio.sleep(_TAKEN_PAUSE_S)

    async def _wait(
        self, awaited: frozenset[BlockKey], deadline: float, running: _Running, place: str
    ) -> None:
        loop = asyncio.get_running_loop()
        while True:
            left_s = min(_LOOK_UP_S, deadline - time.monotonic())
            missing = await loop.run_in_executor(
                self._waiters, self._depot.wait_for, awaited, max(left_s, 0.0)
            )
            if not missing:
                return
            client = next(iter(awaited)).receiver
            if running.superseded.is_set():
                raise StaleAttempt(f"client {client}: {place}: superseded by a later message")
            if time.monotonic() > deadline:
                peers = ", ".join(map(str, sorted(key.sender for key in missing)))
                raise ExchangeIncomplete(
                    f"client {client}: {place}: no vectors of clients {peers} within "
                    "message-timeout-s; see `retexo agent status` on each machine"
                )

    async def _timed(self, running: _Running, call: Callable[[], Result]) -> Result:
        """Compute, and count the seconds."""

        def timed() -> Result:
            begun = time.perf_counter()
            try:
                return call()
            finally:
                running.outcome.compute_s += time.perf_counter() - begun

        return await self._compute.run(timed)


def _check_not_older(ticket: Ticket, running: _Running | None) -> None:
    """Refuse a question of an attempt that is over, before it ends one of the present attempt."""
    if running is not None and ticket.attempt < running.request.ticket.attempt:
        raise StaleAttempt(
            f"job {ticket.job}: attempt {ticket.attempt} was superseded by attempt "
            f"{running.request.ticket.attempt}"
        )


# ---- the thread that computes --------------------------------------------------------------------


class ComputeThread:
    """Runs calls one after the other; a client of a job is only ever touched in here.

    The thread does not hold the process: what it computes when the agent stops is on disk or can be
    computed again. It begins with the first call, so that privileges which the process drops before
    that are none of its own.
    """

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = queue.SimpleQueue()
        self._busy = threading.Event()
        self._thread = threading.Thread(target=self._run, name="compute", daemon=True)

    @property
    def busy(self) -> bool:
        """Whether a call is running."""
        return self._busy.is_set()

    async def run(self, call: Callable[[], Result]) -> Result:
        """Return what ``call`` returns, or raise what it raises; from one event loop's thread."""
        if not self._thread.is_alive():
            self._thread.start()
        future: Future[Result] = Future()
        self._calls.put((future, call))
        return await asyncio.wrap_future(future)

    def _run(self) -> None:
        while True:
            future, call = self._calls.get()
            if not future.set_running_or_notify_cancel():
                continue
            self._busy.set()
            # The call is dropped before its caller gets the result, and from then on counts the
            # memory of its question as free.
            try:
                result = call()
            except BaseException as error:
                # The caller gets the error; the thread continues.
                del call
                self._busy.clear()
                future.set_exception(error)
            else:
                del call
                self._busy.clear()
                future.set_result(result)
                del result
            del future
