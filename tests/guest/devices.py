"""Clients of the guest's two devices: their networks meet over RFCOMM and nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from retexo_fl.additions.bluetooth.transport import BluetoothTransport
from retexo_fl.channels.depot import BlockDepot
from retexo_fl.channels.identity import Identity, make_identity
from retexo_fl.channels.limits import LinkLimits
from retexo_fl.channels.network import PeerNetwork
from retexo_fl.channels.roster import Member, Roster
from retexo_fl.exchange import BlockHeader
from tests.guest.air import DEVICES, FIRST, SECOND
from tests.support.peer_networks import QUICK, Client, Plan, header_of

#: Rows of 256 bytes of a block that takes seconds.
BLOCK_ROWS = 2048
FRAME_BYTES = 2**14


@dataclass(frozen=True, slots=True, kw_only=True)
class Devices:
    """Clients by the device they are on.

    Two clients of one device cannot reach each other, and between two devices the kernel has one
    connection for each channel: so every pair of clients has a channel of its own.

    Attributes:
        at: Address of a client's device.
        identities: Keys and certificates of all.
    """

    at: Mapping[int, str]
    identities: Mapping[int, Identity]

    @classmethod
    def of(cls, folder: Path, *, first: Sequence[int], second: Sequence[int]) -> Devices:
        at = dict.fromkeys(first, FIRST) | dict.fromkeys(second, SECOND)
        identities = {client: make_identity(folder / f"key-{client}", client) for client in at}
        return cls(at=at, identities=identities)

    def client(self, number: int, folder: Path, *, limits: LinkLimits = QUICK) -> Client:
        """Return a client whose files are below ``folder``."""
        identity = self.identities[number]
        depot = BlockDepot(folder / f"depot-{number}", number)
        network = PeerNetwork(
            identity,
            self._roster(number),
            depot,
            listen=[self._address(number, other) for other in self._across(number)],
            limits=limits,
            transports={"bluetooth": BluetoothTransport(adapter=self.at[number])},
        )
        return Client(identity=identity, depot=depot, network=network)

    def _roster(self, number: int) -> Roster:
        across = self._across(number)
        return Roster.of(
            Member(
                client=other,
                certificate_pem=identity.certificate_pem,
                addresses=(self._address(other, number),) if other in across else (),
            )
            for other, identity in self.identities.items()
        )

    def _across(self, number: int) -> list[int]:
        """Return the clients of the other device."""
        return sorted(other for other, device in self.at.items() if device != self.at[number])

    def _address(self, number: int, caller: int) -> str:
        """Return where ``number`` listens for ``caller``."""
        sides = [sorted(c for c, where in self.at.items() if where == device) for device in DEVICES]
        ends = (number, caller) if self.at[number] == FIRST else (caller, number)
        channel = 1 + sides[0].index(ends[0]) * len(sides[1]) + sides[1].index(ends[1])
        return f"bluetooth://{self.at[number]}/{channel}"


def one_of_each(
    folder: Path, limits: LinkLimits = QUICK, *, rows: int = BLOCK_ROWS
) -> tuple[Client, Client]:
    """Return client 0 on the first device and client 1 on the second, for large blocks."""
    devices = Devices.of(folder, first=(0,), second=(1,))
    clients = devices.client(0, folder, limits=limits), devices.client(1, folder, limits=limits)
    for client in clients:
        client.depot.admit_job("job-1", Plan(rows=rows))
    return clients


def large(sender: int, *, rows: int = BLOCK_ROWS) -> BlockHeader:
    """Return the header of a large block between the two."""
    return header_of(sender, 1 - sender, rows=rows)


def kept_bytes(folder: Path, client: int) -> int:
    """Return how much has arrived of what a client has not whole."""
    return sum(path.stat().st_size for path in (folder / f"depot-{client}/inbox").rglob("*.frames"))
