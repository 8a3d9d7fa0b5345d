"""Opens what an agent's settings demand of datagrams."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final

from retexo_fl.additions.kernel_path.carrying.endpoints import make_endpoint
from retexo_fl.additions.kernel_path.carrying.path import VectorPath
from retexo_fl.additions.kernel_path.carrying.port import DatagramCarrier
from retexo_fl.agent.settings import AgentSettings
from retexo_fl.channels.addresses import (
    DATAGRAM_SCHEMES,
    DatagramAddress,
    parse_datagram,
    scheme_of,
)
from retexo_fl.channels.depot import BlockDepot
from retexo_fl.client.log_lines import line
from retexo_fl.errors import ChannelUnavailable, ConfigurationError

logger = logging.getLogger(__name__)

_MIB: Final = 2**20
#: The scheme of who takes datagrams where they cost less, else blocks.
_CHOOSES: Final = "auto"


def open_carrier(
    settings: AgentSettings,
    client: int,
    depot: BlockDepot,
    addresses_of: Callable[[int], Sequence[str]],
) -> DatagramCarrier:
    """Return what carries vectors as datagrams.

    Args:
        settings: Name an address at which the agent takes them, and the memory of sums.
        client: Client index.
        depot: Carries notices and grants.
        addresses_of: Returns the addresses of a peer.

    Raises:
        ConfigurationError: The address cannot be used, or ``xdp`` is demanded of a machine that
            cannot give it.
        IdentityError: It is no address.
    """
    wanted = wanted_address(settings.listen)
    try:
        endpoint = make_endpoint(
            wanted,
            memory_bytes=round(settings.datagram_memory_mib * _MIB),
            clones=settings.broadcast == "tc",
        )
    except ChannelUnavailable as error:
        is_kernel = wanted.scheme in {"xdp", "af-xdp"}
        advice = "; with auto:// the agent works in user space instead" if is_kernel else ""
        place = f"listen: {wanted.scheme}://{wanted.endpoint}"
        raise ConfigurationError(f"{place}: {error}{advice}") from error
    logger.info(line("datagrams", address=endpoint.address, taken_by=endpoint.kind))

    def listens_at(peer: int) -> DatagramAddress | None:
        for address in addresses_of(peer):
            if scheme_of(address) in DATAGRAM_SCHEMES:
                return parse_datagram(address)
        return None

    path = VectorPath(
        client,
        depot,
        endpoint,
        automatic=wanted.scheme == _CHOOSES,
        address_of=lambda peer: None if (at := listens_at(peer)) is None else at.endpoint,
        chooses=lambda peer: (at := listens_at(peer)) is not None and at.scheme == _CHOOSES,
    )
    return DatagramCarrier(path, depot, broadcasts=settings.broadcast == "tc")


def wanted_address(listen: Sequence[str]) -> DatagramAddress:
    """Return where datagrams are to be taken, of the addresses that an agent listens at.

    Raises:
        ConfigurationError: There is not one.
        IdentityError: It is no address.
    """
    found = [parse_datagram(a) for a in listen if scheme_of(a) in DATAGRAM_SCHEMES]
    if len(found) != 1:
        raise ConfigurationError(
            f"listen: got {len(found)} addresses of datagrams; expected one of "
            f"{', '.join(f'{scheme}://' for scheme in DATAGRAM_SCHEMES)}"
        )
    return found[0]
