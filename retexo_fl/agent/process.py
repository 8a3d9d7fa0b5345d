"""The resident process: puts part, jobs, network and socket together, and ends them in order."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias

from retexo_fl.addition import KERNEL_PATH
from retexo_fl.agent import wire
from retexo_fl.agent.carrier_path import CarrierPath
from retexo_fl.agent.introductions import Introductions
from retexo_fl.agent.jobs import AgentJobs
from retexo_fl.agent.meter import Meter
from retexo_fl.agent.network_facts import by_peer, strangers
from retexo_fl.agent.notify import Notifier
from retexo_fl.agent.peer_finding import Peering
from retexo_fl.agent.predictions import PredictionSets
from retexo_fl.agent.promises import part_digest
from retexo_fl.agent.question_log import QuestionLog
from retexo_fl.agent.service import AgentService, ComputeThread, Outcome
from retexo_fl.agent.settings import AgentSettings
from retexo_fl.agent.socket_server import Answerer, Controller, SocketServer
from retexo_fl.agent.status import agent_facts, peer_facts, without_bytes
from retexo_fl.agent.transports import added_transports, own_transports
from retexo_fl.agent.watching import Watching
from retexo_fl.channels.depot import BlockDepot
from retexo_fl.channels.identity import Identity
from retexo_fl.channels.limits import LinkLimits
from retexo_fl.channels.network import PeerNetwork
from retexo_fl.channels.transports.relay import RelayTransport
from retexo_fl.channels.transports.tcp import TcpTransport
from retexo_fl.client.log_lines import line, logged_to_stderr
from retexo_fl.errors import RemoteProtocolError, RetexoError
from retexo_fl.graph.parts.partition import GraphPartition
from retexo_fl.graph.parts.storage import open_partition
from retexo_fl.process_memory import return_unused
from retexo_fl.server_address import ServerAddress, host_and_port

logger = logging.getLogger(__name__)

_Task: TypeAlias = "asyncio.Task[None]"

#: Time for a computation to end when the agent stops; all that it would keep is on disk.
_STOP_S: Final = 3.0
_STATUS_EVERY_S: Final = 10.0
_ROSTER_EVERY_S: Final = 5.0


class ServerLink(Protocol):
    """What asks the server for messages, where no SuperNode does, and the socket for answers."""

    def run(self, stopping: threading.Event, most_bytes: int) -> None:
        """Answer messages of so many bytes at most, until ``stopping``, in a thread of its own.

        Raises:
            RetexoError: It cannot, or cannot any more.
        """
        ...

    def facts(self) -> dict[str, Any]:
        """Return ``address``, ``state``, ``since`` when, ``reason``, and how many ``answered``."""
        ...


def run_agent(settings: AgentSettings, link: ServerLink | None = None) -> None:
    """Serve one client's part until SIGTERM, SIGINT or ``retexo agent stop``.

    Whoever calls this owns the state folder (:func:`~retexo_fl.agent.state_folder.owned_state`).

    A computation that takes longer than a few seconds to end is given up with the process: it is
    done again when it is asked for again.

    Args:
        settings: Of ``agent.toml``.
        link: Asks the server for messages; None where a SuperNode does.

    Raises:
        RetexoError: The agent could not start, or its network or its link failed.
    """
    with logged_to_stderr():
        part = open_partition(Path(settings.partition))
        compute = ComputeThread()
        agent = _Agent.of(settings, part, compute)
        agent.link = link
        asyncio.run(agent.run())
    if compute.busy or agent.is_linked:
        # A thread that computes in native code, or waits for a network, cannot be ended, and Python
        # would wait for it.
        logging.shutdown()
        sys.stdout.flush()
        os._exit(0)


@dataclass(slots=True, kw_only=True)
class _Agent:
    """Everything that runs while the agent does."""

    settings: AgentSettings
    partition: GraphPartition
    compute: ComputeThread
    depot: BlockDepot
    jobs: AgentJobs
    network: PeerNetwork
    introductions: Introductions
    relay: RelayTransport
    carrier: CarrierPath | None
    meter: Meter | None
    notifier: Notifier
    watching: Watching | None = None
    link: ServerLink | None = None
    #: The thread of ``link`` runs, until this is set.
    is_linked: bool = False
    link_stop: threading.Event = field(default_factory=threading.Event)
    #: The network and the agent's own socket are served.
    is_serving: bool = False
    started_at: float = field(default_factory=time.time)
    stopping: asyncio.Event = field(default_factory=asyncio.Event)

    @classmethod
    def of(cls, settings: AgentSettings, part: GraphPartition, compute: ComputeThread) -> _Agent:
        """Open what the settings name."""
        state = Path(settings.state)
        depot = BlockDepot(state / "depot", part.client)
        meter = None
        if settings.meter:
            superlink = ServerAddress.parse(settings.superlink, "superlink")
            meter = Meter(
                host_and_port(settings.meter, "meter"),
                (superlink.host, superlink.port),
            )
        identity = Identity.load(Path(settings.key), Path(settings.certificate))
        introductions, relay = Introductions(settings, identity), RelayTransport()
        network = PeerNetwork(
            identity,
            introductions.roster(),
            depot,
            # A client that takes relayed streams needs no address for it.
            listen=(*settings.listen, "relay:"),
            limits=LinkLimits(look_every_s=settings.look_every_s or None),
            transports={
                "tcp": TcpTransport(),
                "relay": relay,
                **added_transports(settings),
                **own_transports(settings),
            },
        )
        introductions.network = network
        carrier = _carrier(settings, part.client, depot, network.addresses_of)
        return cls(
            settings=settings,
            partition=part,
            compute=compute,
            depot=depot,
            jobs=AgentJobs(
                part,
                depot,
                state=state,
                predictions=_prediction_sets(settings, part.client),
                limits=settings,
                questions=QuestionLog(
                    state, part_digest(Path(settings.partition)), settings.most_questions
                ),
                carrier=carrier,
                signer=introductions.signer(),
            ),
            network=network,
            introductions=introductions,
            relay=relay,
            carrier=carrier,
            meter=meter,
            notifier=Notifier(),
        )

    async def run(self) -> None:
        """Serve until a request or a signal to stop."""
        arrivals = self.depot if self.carrier is None else self.carrier.arrivals()
        service = AgentService(
            self.jobs, self.compute, arrivals, peering=Peering(self.introductions, self.relay)
        )
        answer = _controller(self, service)
        ask = self._watched(_without_places(service.answer, self.settings))
        server = SocketServer(
            Path(self.settings.socket),
            ask,
            answer,
            expect=service.expect,
            most_bytes=self.settings.question_bytes,
        )
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stopping.set)
        loop.add_signal_handler(signal.SIGHUP, self.read_roster)
        if self.carrier is not None:
            self.carrier.start()
        tasks: set[asyncio.Task[None]] = set()
        try:
            if self.watching is not None:
                # Before all that takes time: a loop that turns is healthy, and not yet ready.
                tasks.add(await _started(self.watching.run))
            await self.compute.run(self.jobs.restore)
            tasks |= await self._start_network()
            await server.start()
            self.is_serving = True
            return_unused()
            tasks.add(asyncio.create_task(self._tell_manager()))
            if self.link is not None:
                tasks.add(asyncio.create_task(self._keep_link(self.link)))
            if self.settings.roster:
                tasks.add(asyncio.create_task(self._follow_roster()))
            tasks.add(asyncio.create_task(self._until_stopped()))
            ended, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in ended:
                # Where the network or the meter failed, the agent ends with its named error.
                task.result()
        finally:
            # Before its question here is cut off: what it gets then is no answer.
            self.link_stop.set()
            self.notifier.stopping()
            server.close()
            service.close()
            await self._end(tasks)
            if self.carrier is not None:
                self.carrier.close()
            server.remove()

    def read_roster(self) -> None:
        """Take over who the peers are now; a roster that cannot be used changes nothing."""
        try:
            self.network.replace_roster(self.introductions.roster())
        except RetexoError as error:
            logger.error(line("roster", refused=str(error)))  # noqa: TRY400 - not a bug
        else:
            logger.info(line("roster", read=self.settings.roster))

    async def _follow_roster(self) -> None:
        """Read a roster that takes the former one's place, once two looks found it the same."""
        path = Path(self.settings.roster)
        read = seen = _stamp(path)
        while True:
            await asyncio.sleep(_ROSTER_EVERY_S)
            found = _stamp(path)
            if found is not None and found == seen != read:
                read = found
                self.read_roster()
            seen = found

    async def _start_network(self) -> set[asyncio.Task[None]]:
        """Listen for peers, and for the SuperNode; return the tasks that run beside the socket."""
        runs = [self.network.run, *([] if self.meter is None else [self.meter.run])]
        return {await _started(run) for run in runs}

    def _watched(self, answer: Answerer) -> Answerer:
        """Have figures of the agent served, if its owner wants them; return what counts answers."""
        if not self.settings.metrics:
            return answer
        # Imported by agents that are watched alone.
        from retexo_fl.agent.metrics import AgentMetrics, Answers

        answers = Answers()
        metrics = AgentMetrics(self.facts, answers, self.why_not_ready)
        self.watching = Watching(
            place=self.settings.metrics,
            why_not_ready=self.why_not_ready,
            metrics=metrics.text,
        )
        return answers.counting(answer)

    def why_not_ready(self) -> str:
        """Return why a training could not ask this agent now; empty if one can."""
        if self.stopping.is_set():
            return "stopping"
        if not self.is_serving:
            return "starting"
        known = self.network.report().peers.keys()
        unknown = [peer for peer in self.partition.peers if peer not in known]
        if unknown and not self.settings.introductions:
            return f"{len(unknown)} of {len(self.partition.peers)} peers are not in the roster"
        if self.link is not None and (state := self.link.facts()["state"]) != "connected":
            return f"the SuperLink: {state}"
        return ""

    async def _tell_manager(self) -> None:
        """Report to systemd and the log that the agent is ready; then send signs of life."""
        part = self.partition
        logger.info(
            line(
                "ready",
                client=part.client,
                nodes=part.num_inner,
                peers=len(part.peers),
                socket=self.settings.socket,
                listen=",".join(self.settings.listen),
            )
        )
        self.notifier.ready(self._summary())
        pause_s = min(self.notifier.watchdog_s or _STATUS_EVERY_S, _STATUS_EVERY_S)
        while True:
            await asyncio.sleep(pause_s)
            self.notifier.alive()
            self.notifier.status(self._summary())

    async def _keep_link(self, link: ServerLink) -> None:
        """Have a thread ask the server until the agent stops; what it fails of, the agent does."""
        ended: Future[None] = Future()
        # The server's message and what the socket reads of it are in memory at a time.
        most_bytes = self.settings.question_bytes // 2

        def work() -> None:
            try:
                link.run(self.link_stop, most_bytes)
            except BaseException as error:
                ended.set_exception(error)
            else:
                ended.set_result(None)

        self.is_linked = True
        threading.Thread(target=work, name="superlink", daemon=True).start()
        waiting = asyncio.wrap_future(ended)
        try:
            await asyncio.shield(waiting)
        finally:
            # Until it has said goodbye to the server.
            await asyncio.wait({waiting}, timeout=_STOP_S)
            self.is_linked = not ended.done()

    async def _until_stopped(self) -> None:
        await self.stopping.wait()

    async def _end(self, tasks: set[asyncio.Task[None]]) -> None:
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=_STOP_S)
        writing = asyncio.ensure_future(self.compute.run(self.jobs.write_traffic))
        await asyncio.wait({writing}, timeout=_STOP_S)
        if not writing.cancel() and (error := writing.exception()) is not None:
            logger.error(line("unwritten", reason=str(error)))
        logger.info(line("stopped", uptime_s=time.time() - self.started_at))

    def _summary(self) -> str:
        part, jobs = self.partition, self.jobs.running
        doing = ", ".join(f"{job.name} {job.state} in round {job.round}" for job in jobs)
        return f"client {part.client} of {part.num_clients}: {doing or 'no job'}"

    def facts(self) -> dict[str, Any]:
        """Return what `retexo agent status` shows."""
        report = self.network.report()
        flower = None if self.meter is None else self.meter.totals()
        facts = {
            **agent_facts(self.partition, self.jobs, started_at=self.started_at),
            "peers": peer_facts(self.jobs, self.depot.owed(), by_peer(report)),
            "deliveries": self.depot.deliveries(),
            "strangers": strangers(report),
            "datagrams": None if self.carrier is None else self.carrier.facts(),
            "flower": flower,
            "superlink": None if self.link is None else self.link.facts(),
        }
        return without_bytes(facts) if self.jobs.had_masked else facts


def _stamp(path: Path) -> tuple[int, int, int] | None:
    """Return what is another of a file that was replaced or written; None where there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


async def _started(run: Callable[[asyncio.Event], Coroutine[Any, Any, None]]) -> _Task:
    """Return the task of something that serves, once it does.

    Raises:
        RetexoError: It cannot.
    """
    ready = asyncio.Event()
    task = asyncio.create_task(run(ready))
    waiting = asyncio.create_task(ready.wait())
    await asyncio.wait({task, waiting}, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    if task.done():
        task.result()
    return task


def _carrier(
    settings: AgentSettings,
    client: int,
    depot: BlockDepot,
    addresses_of: Callable[[int], Sequence[str]],
) -> CarrierPath | None:
    """Open what carries vectors as datagrams; None where the agent listens at no such address.

    Args:
        settings: Name the address.
        client: Client index.
        depot: Carries what two carriers agree on.
        addresses_of: Returns the addresses of a peer.

    Raises:
        ConfigurationError: The address cannot be used.
    """
    for address in settings.listen:
        if KERNEL_PATH.serves(address):
            opening = KERNEL_PATH.module("carrying.opening", f"listen: {address}")
            carrier: CarrierPath = opening.open_carrier(settings, client, depot, addresses_of)
            return carrier
    return None


def _prediction_sets(settings: AgentSettings, client: int) -> PredictionSets | None:
    if not settings.predictions:
        return None
    return PredictionSets.of(Path(settings.predictions), client, Path(settings.partition))


def _without_places(answer: Answerer, settings: AgentSettings) -> Answerer:
    """Have errors, which go to the server, name settings in place of what they say: paths."""
    named = {name: getattr(settings, name) for name in ("partition", "state", "predictions")}
    # Of folders in each other, the inner one first.
    places = sorted(((p, n) for n, p in named.items() if p), key=lambda pair: -len(pair[0]))

    async def answer_without(request: wire.Request) -> Outcome:
        try:
            return await answer(request)
        except RetexoError as error:
            sentence = str(error)
            for place, name in places:
                sentence = sentence.replace(str(Path(place)), name)
            if sentence == str(error):
                raise
            logger.warning(line("failed", message=request.message, reason=str(error)))
            raise type(error)(sentence) from error

    return answer_without


def _controller(agent: _Agent, service: AgentService) -> Controller:
    """Return what answers questions about the agent."""

    async def control(asked: Mapping[str, Any]) -> Mapping[str, Any]:
        match asked.get("ask"):
            case "status":
                return agent.facts()
            case "stop":
                agent.stopping.set()
                return {"pid": os.getpid()}
            case "forget":
                return {"known": await service.forget(str(asked.get("job"))[:80])}
        raise RemoteProtocolError(
            f"got request {str(asked.get('ask'))[:40]!r}; expected status, stop or forget"
        )

    return control
