"""How long one row takes from one agent's depot to the other's, over Bluetooth."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from retexo_fl.additions.bluetooth.transport import BluetoothTransport
from retexo_fl.channels import BlockKey
from retexo_fl.channels.depot import BlockDepot
from retexo_fl.channels.gate import Admission
from retexo_fl.channels.network import PeerNetwork
from retexo_fl.exchange import BlockHeader, encode_block
from tests.support.loopback import make_members

_MAX_BYTES = 2**20
_WITHIN_S = 60.0


class AnyRow:
    """A gate that lets in one row of a width, of any layer."""

    def __init__(self, header: BlockHeader) -> None:
        self._header = header

    def admission(self, key: BlockKey) -> Admission:
        """See :class:`~retexo_fl.channels.gate.Gate`."""
        return Admission(header=replace(self._header, layer=key.layer), max_bytes=_MAX_BYTES)


def row_times(adapters: Sequence[str], *, width: int, times: int) -> dict[str, list[float]]:
    """Send single rows of ``width`` float32 from one adapter to the other.

    Args:
        adapters: Addresses of both, with channels that nobody listens at: ``DEVICE/CHANNEL``.
        width: Of the row.
        times: How often.

    Returns:
        Seconds from the sender's ``send_block`` until the row was ``arrived`` at the receiver and
        ``acknowledged`` at the sender, over a link that stands; and both with the connection,
        TLS and greeting before it, as ``arrived_connecting`` and ``acknowledged_connecting``.
    """
    with TemporaryDirectory() as folder:
        return asyncio.run(_measure(Path(folder), adapters, width, times))


async def _measure(
    root: Path, adapters: Sequence[str], width: int, times: int
) -> dict[str, list[float]]:
    addresses = [f"bluetooth://{adapter}" for adapter in adapters]
    identities, roster = make_members(root, 2, addresses)
    depots = [BlockDepot(root / f"depot-{client}", client) for client in range(2)]
    header = _header(width)
    for depot in depots:
        depot.admit_job(header.job, AnyRow(header))
    networks = [
        PeerNetwork(
            identity,
            roster,
            depot,
            listen=[address],
            transports={"bluetooth": BluetoothTransport(adapter=adapter.partition("/")[0])},
        )
        for identity, depot, address, adapter in zip(
            identities, depots, addresses, adapters, strict=True
        )
    ]
    found: dict[str, list[float]] = {}
    for layer in range(times):
        async with _running(networks):
            await _send(depots, replace(header, layer=layer), found, "_connecting")
            if layer == 0:
                for standing in range(times, 2 * times):
                    await _send(depots, replace(header, layer=standing), found, "")
    return found


async def _send(
    depots: Sequence[BlockDepot], header: BlockHeader, found: dict[str, list[float]], how: str
) -> None:
    sender, receiver = depots
    row = np.random.default_rng(header.layer).standard_normal((1, header.width))
    frames = encode_block(header, row.astype(np.float32), codec="dense").frames
    key = BlockKey(
        job=header.job,
        layer=header.layer,
        weights_digest=header.weights_digest,
        sender=0,
        receiver=1,
    )
    waiting = asyncio.create_task(asyncio.to_thread(receiver.wait_for, [key], _WITHIN_S))
    await asyncio.sleep(0.1)
    begun_s = time.monotonic()
    sender.send_block(key, frames)
    missing = await waiting
    arrived_s = time.monotonic()
    assert not missing
    async with asyncio.timeout(_WITHIN_S):
        while sender.num_owed(1):
            await asyncio.sleep(0.001)
    acknowledged_s = time.monotonic()
    found.setdefault(f"arrived{how}", []).append(arrived_s - begun_s)
    found.setdefault(f"acknowledged{how}", []).append(acknowledged_s - begun_s)


@asynccontextmanager
async def _running(networks: Sequence[PeerNetwork]) -> AsyncIterator[None]:
    tasks = []
    for network in networks:
        ready = asyncio.Event()
        tasks.append(asyncio.create_task(network.run(ready)))
        await asyncio.wait_for(ready.wait(), _WITHIN_S)
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        for task in tasks:
            with suppress(asyncio.CancelledError):
                await task


def _header(width: int) -> BlockHeader:
    return BlockHeader(
        job="job-1",
        layer=0,
        sender=0,
        receiver=1,
        weights_digest=b"w" * 32,
        num_edges=1,
        plan_digest=b"p" * 32,
        num_vectors=1,
        width=width,
        dtype="float32",
    )
