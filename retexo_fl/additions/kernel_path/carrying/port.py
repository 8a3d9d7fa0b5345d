"""One job's end of the way that vectors take as datagrams: what it sends, expects and has kept."""

from __future__ import annotations

import io
import logging
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from zipfile import BadZipFile

import numpy as np

from retexo_fl.additions.kernel_path.carrying.arrivals import VectorArrivals
from retexo_fl.additions.kernel_path.carrying.broadcasts import alone, together
from retexo_fl.additions.kernel_path.carrying.traffic import datagram_traffic
from retexo_fl.channels import BlockKey
from retexo_fl.channels.depot import BlockDepot
from retexo_fl.client.log_lines import line
from retexo_fl.client.vector_carrier import ExchangeId
from retexo_fl.errors import CheckpointError
from retexo_fl.exchange import BlockHeader, FixedVectors
from retexo_fl.files import write_whole
from retexo_fl.ledger import Traffic

if TYPE_CHECKING:
    # It loads numba, which agents that take no datagrams do without.
    from retexo_fl.additions.kernel_path.carrying.path import VectorPath

logger = logging.getLogger(__name__)

#: From so many rows on, a set of peers is served by packets of its own.
_LEAST_ROWS: Final = 8


class DatagramCarrier:
    """Carries an agent's vectors as datagrams: a :class:`~.carrier_path.CarrierPath`.

    Args:
        path: All exchanges of the agent.
        depot: Has the vectors that come as blocks.
        broadcasts: Serve peers that need the same rows with the same packets.
    """

    def __init__(self, path: VectorPath, depot: BlockDepot, *, broadcasts: bool) -> None:
        self._path = path
        self._depot = depot
        self._broadcasts = broadcasts

    def start(self) -> None:
        """Begin to send and take."""
        self._path.start()

    def close(self) -> None:
        """End it."""
        self._path.close()

    def facts(self) -> dict[str, Any]:
        """Return what ``retexo agent status`` shows of it."""
        return self._path.facts()

    def arrivals(self) -> VectorArrivals:
        """Return what waits for blocks and datagrams alike."""
        return VectorArrivals(self._depot, self._path)

    def open_job(
        self, folder: Path, *, clients: int, all_needed: bool, times: int = 0, unadded: str = ""
    ) -> JobVectors:
        """Return a job's end; see there."""
        return JobVectors(
            self._path,
            folder,
            clients=clients,
            all_needed=all_needed,
            times=times,
            broadcasts=self._broadcasts,
            unadded=unadded,
        )

    def forget_job(self, job: str) -> None:
        """Forget all exchanges of a job."""
        self._path.forget_job(job)


class JobVectors:
    """What one job sends and receives as datagrams.

    Args:
        path: Of the agent.
        folder: Keeps what arrived before a stage, for the time after a restart.
        clients: How many the job has.
        all_needed: No peer may stay away, so vectors of different peers may be added as they come.
        times: How often each of its exchanges comes; 0 where that is not known.
        broadcasts: Serve peers that need the same rows with the same packets.
        unadded: Why vectors are stored one by one, none added to another, and what to do; empty
            where some are. Logged when the first have come.
    """

    def __init__(
        self,
        path: VectorPath,
        folder: Path,
        *,
        clients: int,
        all_needed: bool,
        times: int,
        broadcasts: bool,
        unadded: str = "",
    ) -> None:
        self._unadded = unadded
        self._path = path
        self._folder = folder
        self._most_senders = clients - 1
        self._all_needed = all_needed
        self._times = times
        self._broadcasts = broadcasts

    def reaches(self, peer: int) -> bool:
        """See :class:`~retexo_fl.client.vector_carrier.VectorCarrier`."""
        return self._path.reaches(peer)

    def refuse_strangers(
        self,
        header_of: Callable[[int], BlockHeader],
        exchange: ExchangeId,
        *,
        known: Collection[int],
    ) -> None:
        """See :class:`~retexo_fl.client.vector_carrier.VectorCarrier`."""
        for sender in sorted(self._path.announcing(exchange) - set(known)):
            self._path.read_notice(header_of(sender))

    def send(
        self,
        headers: Mapping[int, BlockHeader],
        fixed: FixedVectors,
        *,
        rows: Mapping[int, np.ndarray] | None = None,
    ) -> dict[int, Traffic]:
        """See :class:`~retexo_fl.client.vector_carrier.VectorCarrier`."""
        headers = {
            peer: header
            for peer, header in headers.items()
            if not self._path.is_block(header, times=self._times, most_senders=self._most_senders)
        }
        if not headers:
            return {}
        counts = {peer: header.num_vectors for peer, header in headers.items()}
        streams = alone(counts)
        if self._broadcasts and rows is not None:
            streams = together({peer: rows[peer] for peer in headers}, least_rows=_LEAST_ROWS)
        notices = self._path.send(headers, fixed, streams)
        return {peer: datagram_traffic(headers[peer], notice) for peer, notice in notices.items()}

    def expect(
        self,
        headers: Mapping[int, BlockHeader],
        targets: Mapping[int, np.ndarray] | None,
        *,
        all_needed: bool | None = None,
    ) -> None:
        """See :class:`~retexo_fl.client.vector_carrier.VectorCarrier`."""
        is_needed = self._all_needed if all_needed is None else all_needed
        if targets is not None:
            targets = {
                peer: targets.get(peer, np.full(header.num_vectors, -1, dtype=np.int64))
                for peer, header in headers.items()
            }
        self._path.expect(
            headers,
            targets,
            together=is_needed,
            times=self._times,
            most_senders=self._most_senders,
        )

    def arrived(self, exchange: ExchangeId) -> list[dict[int, tuple[np.ndarray, Traffic]]]:
        """See :class:`~retexo_fl.client.vector_carrier.VectorCarrier`."""
        units = self._path.arrived(exchange)
        if units and self._unadded:
            logger.warning(line("datagrams", job=exchange[0], added=0, reason=self._unadded))
            self._unadded = ""
        return [
            {
                peer: (vectors, datagram_traffic(header, notice))
                for peer, (vectors, header, notice) in unit.items()
            }
            for unit in units
        ]

    def keep(self, exchange: ExchangeId, vectors: Mapping[int, np.ndarray]) -> None:
        """See :class:`~retexo_fl.client.vector_carrier.VectorCarrier`."""
        path = self._folder / f"{_stem(exchange)}-{min(vectors)}.npz"
        content = io.BytesIO()
        np.savez(content, allow_pickle=False, **{str(peer): v for peer, v in vectors.items()})
        try:
            write_whole(path, [content.getvalue()], durable=True)
        except OSError as error:
            raise CheckpointError(f"{path}: could not be written ({error.strerror})") from error

    def kept(self, exchange: ExchangeId) -> dict[int, np.ndarray]:
        """See :class:`~retexo_fl.client.vector_carrier.VectorCarrier`."""
        found: dict[int, np.ndarray] = {}
        for path in sorted(self._folder.glob(f"{_stem(exchange)}-*.npz")):
            try:
                with np.load(path, allow_pickle=False) as arrays:
                    found |= {int(name): arrays[name] for name in arrays.files}
            except (OSError, ValueError, EOFError, BadZipFile) as error:
                raise CheckpointError(f"{path}: is damaged ({error})") from error
        return found

    def carries(self, key: BlockKey) -> bool:
        """See :class:`~retexo_fl.client.vector_carrier.VectorCarrier`."""
        return self._path.carries(key)

    def untaken(self, exchanges: set[ExchangeId]) -> list[int]:
        """See :class:`~retexo_fl.client.vector_carrier.VectorCarrier`."""
        return self._path.untaken(exchanges)

    def drop(self, exchanges: set[ExchangeId]) -> set[BlockKey]:
        """See :class:`~retexo_fl.client.vector_carrier.VectorCarrier`."""
        return self._path.drop(exchanges)


def _stem(exchange: ExchangeId) -> str:
    _, stage, digest = exchange
    return f"vectors-{stage}-{digest[:8].hex()}"
