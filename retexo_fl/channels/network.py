"""The network of one client: connects to peers, lets peers connect, keeps one link to each."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import AbstractAsyncContextManager, nullcontext, suppress

from retexo_fl.channels.accounts import NetworkReport, RefusalLog
from retexo_fl.channels.addresses import DATAGRAM_SCHEMES, scheme_of, source_of
from retexo_fl.channels.depot import BlockDepot
from retexo_fl.channels.doorway import Doorway, Proved, prove
from retexo_fl.channels.identity import Identity, certificate_digest
from retexo_fl.channels.limits import LinkLimits
from retexo_fl.channels.peer import Peer
from retexo_fl.channels.roster import Member, Roster
from retexo_fl.channels.secure_stream import SecureStream, accepting_context, connecting_context
from retexo_fl.channels.streams import ByteStream, Listener, Transport
from retexo_fl.channels.transports.tcp import TcpTransport
from retexo_fl.errors import ChannelUnavailable, IdentityError, RetexoError
from retexo_fl.exchange.link.reasons import Reason, reason_of


class PeerNetwork:
    """Brings a client's blocks to its peers and theirs to it, until cancelled.

    One peer never stops another: each has its own task, account, penalty and patience.

    Args:
        identity: This client's key and certificate.
        roster: All clients; this one's own entry may be absent.
        depot: Its blocks.
        listen: Addresses of this machine at which peers connect; none if they cannot. Those of
            datagrams are left out.
        limits: What peers and strangers are granted.
        transports: By scheme of the address; ``tcp`` if not given.
        wall_clock: Returns the Unix time, for the report; waits use the clock of the event loop.

    Raises:
        IdentityError: Identity, roster and depot do not belong together.
    """

    def __init__(
        self,
        identity: Identity,
        roster: Roster,
        depot: BlockDepot,
        *,
        listen: Sequence[str],
        limits: LinkLimits | None = None,
        transports: Mapping[str, Transport] | None = None,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._identity = identity
        self._depot = depot
        self._listen = _of_streams(listen)
        self._limits = limits or LinkLimits()
        self._transports = {"tcp": TcpTransport()} if transports is None else dict(transports)
        self._wall_clock = wall_clock
        self._log = RefusalLog(self._limits.log_every_s)
        self._peers: dict[int, Peer] = {}
        self._diallers: dict[int, asyncio.Task[None]] = {}
        self._listeners: list[Listener] = []
        self._radio = asyncio.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: asyncio.TaskGroup | None = None
        self._doorway = Doorway(
            self._limits, self._log, secure=self._accepting_end, welcome=self._welcome
        )
        if identity.client != depot.client:
            raise IdentityError(
                f"{identity.certificate_path} is of client {identity.client}, this is client "
                f"{depot.client}"
            )
        self._take_roster(roster, self._prepare(roster))

    async def run(self, ready: asyncio.Event | None = None) -> None:
        """Exchange blocks until cancelled.

        Args:
            ready: Set once peers can connect.

        Raises:
            ChannelUnavailable: An address cannot be listened at.
            IdentityError: There is no transport for one.
        """
        self._loop = asyncio.get_running_loop()
        try:
            await self._open()
            self._depot.on_outgoing(self._wake_from_any_thread)
            async with asyncio.TaskGroup() as tasks:
                self._tasks = tasks
                for listener in self._listeners:
                    tasks.create_task(self._doorway.keep(listener, tasks))
                self._start_diallers()
                if ready is not None:
                    ready.set()
        finally:
            self._loop = self._tasks = None
            self._diallers.clear()
            for listener in self._listeners:
                await listener.close()

    def report(self) -> NetworkReport:
        """Return what is known of every peer; may be called from any thread."""
        loop = self._loop
        now_s = None if loop is None else loop.time()
        return NetworkReport(
            listening=tuple(listener.address for listener in self._listeners),
            peers={client: peer.report(now_s) for client, peer in sorted(self._peers.items())},
            strangers_refused=dict(self._doorway.refused),
        )

    def addresses_of(self, client: int) -> tuple[str, ...]:
        """Return a peer's addresses in the roster; may be called from any thread."""
        peer = self._peers.get(client)
        return () if peer is None else peer.member.addresses

    def replace_roster(self, roster: Roster) -> None:
        """Let others in from now on; may be called from any thread.

        Links stay to clients that have the same certificate in both rosters.

        Raises:
            IdentityError: It has another certificate for this client, or one that TLS cannot use.
        """
        context, loop = self._prepare(roster), self._loop
        if loop is None:
            self._take_roster(roster, context)
            return
        # The loop may end between the two lines.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(self._take_roster, roster, context)

    # ---- the roster -------------------------------------------------------------------------

    def _check_own_entry(self, roster: Roster) -> None:
        own = roster.members.get(self._depot.client)
        if own is not None and own.digest != certificate_digest(self._identity.certificate_pem):
            raise IdentityError(
                f"the roster has another certificate for client {own.client} than "
                f"{self._identity.certificate_path}"
            )

    def _prepare(self, roster: Roster) -> ssl.SSLContext:
        self._check_own_entry(roster)
        return accepting_context(self._identity, roster)

    def _take_roster(self, roster: Roster, context: ssl.SSLContext) -> None:
        self._context = context
        self._clients = {member.digest: client for client, member in roster.members.items()}
        others = {
            client: member
            for client, member in roster.members.items()
            if client != self._depot.client
        }
        self._doorway.places = _places(others)
        for client, peer in list(self._peers.items()):
            member = others.get(client)
            if member is None or member.digest != peer.member.digest:
                self._drop(client)
            else:
                peer.member = member
        for client, member in others.items():
            if client not in self._peers:
                self._peers[client] = Peer(
                    member,
                    self._depot,
                    limits=self._limits,
                    log=self._log,
                    wall_clock=self._wall_clock,
                )
        self._start_diallers()
        self._wake()

    def _drop(self, client: int) -> None:
        peer, dialler = self._peers.pop(client), self._diallers.pop(client, None)
        if self._tasks is not None:
            self._tasks.create_task(peer.leave("the roster has changed"))
        if dialler is not None:
            dialler.cancel()

    # ---- streams that others open -----------------------------------------------------------

    async def _open(self) -> None:
        self._listeners = []
        for address in self._listen:
            self._listeners.append(await self._transport(address).listen(address))

    def _accepting_end(self) -> SecureStream:
        return SecureStream(self._context, is_accepting=True, clients=self._clients)

    async def _welcome(self, proved: Proved) -> None:
        peer = self._peers.get(proved.client)
        # The roster may have changed since its handshake began.
        if peer is None or proved.secure.peer_digest != peer.member.digest:
            await proved.stream.close()
            return
        await peer.meet(proved, opened_by=proved.client)

    # ---- streams that this client opens -----------------------------------------------------

    def _start_diallers(self) -> None:
        if self._tasks is None:
            return
        for client, peer in self._peers.items():
            if client not in self._diallers:
                self._diallers[client] = self._tasks.create_task(self._dial(peer))

    async def _dial(self, peer: Peer) -> None:
        """Connect to one peer whenever blocks wait for it and there is no link."""
        while True:
            peer.woken.clear()
            wait_s = peer.connect_in_s()
            if wait_s <= 0:
                peer.tried(steady=await self._connect(peer))
                continue
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_s if wait_s < float("inf") else None):
                    await peer.woken.wait()

    async def _connect(self, peer: Peer) -> bool:
        """Try the addresses of a peer in their order; return whether a link held for a while."""
        for address in _of_streams(peer.member.addresses):
            try:
                proved = await self._reach(peer, address)
            except Exception as error:
                # Whatever an attempt raises ends that attempt and no other.
                named = self._log.named(peer.name, error)
                reason = reason_of(named)
                if reason in (Reason.CERTIFICATE, Reason.FAULT):
                    peer.note_refusal(reason, f"{reason}: {address}: {_bare(named, reason)}")
                else:
                    peer.not_found(str(named))
                continue
            return proved is not None and await peer.meet(proved, opened_by=self._depot.client)
        return False

    def _turn(self, address: str) -> AbstractAsyncContextManager[object]:
        """Wait until the same radio looks for no other device: it pages one at a time."""
        return self._radio if scheme_of(address) == "bluetooth" else nullcontext()

    async def _reach(self, peer: Peer, address: str) -> Proved | None:
        """Connect to a peer; None where that is of no use any more."""
        async with self._turn(address):
            # It may have come by itself meanwhile.
            if peer.connect_in_s() > 0:
                return None
            stream = await self._open_stream(address, peer.member.client)
        try:
            context = self._connecting_context(peer)
            clients = {peer.member.digest: peer.member.client}
            secure = SecureStream(context, is_accepting=False, clients=clients)
            limits = self._limits.on(stream.channel)
            return await prove(stream, secure, within_s=limits.handshake_s)
        except BaseException:
            await stream.close()
            raise

    async def _open_stream(self, address: str, peer: int) -> ByteStream:
        within_s = self._limits.on(scheme_of(address)).connect_s
        try:
            async with asyncio.timeout(within_s):
                return await self._transport(address).connect(address, peer)
        except TimeoutError as error:
            raise ChannelUnavailable(f"{address}: no connection within {within_s:g} s") from error

    def _connecting_context(self, peer: Peer) -> ssl.SSLContext:
        return connecting_context(self._identity, peer.member)

    def _transport(self, address: str) -> Transport:
        scheme = scheme_of(address)
        if scheme not in self._transports:
            raise ChannelUnavailable(f"{address}: this machine has no {scheme} channel")
        return self._transports[scheme]

    # ---- news -------------------------------------------------------------------------------

    def _wake_from_any_thread(self) -> None:
        loop = self._loop
        if loop is not None:
            # The loop may end between the two lines.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        for peer in self._peers.values():
            peer.wake()


def _places(members: Mapping[int, Member]) -> Mapping[str, Set[int]]:
    """Return which clients a roster has at each source address."""
    places: dict[str, set[int]] = defaultdict(set)
    for client, member in members.items():
        for address in _of_streams(member.addresses):
            places[source_of(address)].add(client)
    return places


def _of_streams(addresses: Sequence[str]) -> tuple[str, ...]:
    """Leave out where datagrams go; links need streams."""
    return tuple(address for address in addresses if scheme_of(address) not in DATAGRAM_SCHEMES)


def _bare(error: RetexoError, reason: Reason) -> str:
    return str(error).removeprefix(f"{reason}: ")
