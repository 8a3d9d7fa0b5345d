"""The kernel path: whether programs that take datagrams in the kernel can be loaded here."""

from __future__ import annotations

import socket
from collections.abc import Iterable, Iterator

from retexo_fl.additions.kernel_path.xdp.probe import probe
from retexo_fl.channels.addresses import parse_datagram
from retexo_fl.doctor.finding import Finding, absent, bad, doubtful, good

_SCHEMES = ("xdp:", "auto:")


def why_no_kernel_path() -> str:
    """Return why programs in the kernel cannot take datagrams here; empty where they can."""
    found = probe()
    return "" if found.ok else found.reason


def examine(listen: Iterable[str], known: Iterable[str]) -> Iterator[Finding]:
    """Load the program, have it take one packet, and unload it; no interface is touched.

    The result holds for the user who runs it: an agent may have privileges that this user lacks.

    Args:
        listen: Addresses that the client listens at.
        known: Addresses in its roster: what takes datagrams there makes no difference here.
    """
    del known
    reason = why_no_kernel_path()
    if not reason:
        yield good("kernel path", "available (native/generic untested until attached)")
    elif not any(address.startswith(_SCHEMES) for address in listen):
        yield absent("kernel path", reason)
    else:
        advice = (
            "install libbpf1, and give the agent CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN; or listen "
            "at udp://"
        )
        yield doubtful("kernel path", reason, advice)


def judge_listening(address: str) -> Finding:
    """Return whether an agent that does not run yet could take datagrams at an address.

    Raises:
        IdentityError: It is none.
        OSError: It cannot be bound.
    """
    wanted = parse_datagram(address)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as tried:
        tried.bind((wanted.host, wanted.port))
    if wanted.scheme == "udp":
        return good(address, "free; datagrams are received in user space")
    reason = why_no_kernel_path()
    if not reason:
        return good(address, "free; datagrams are received in the kernel")
    if wanted.scheme == "auto":
        return absent(address, f"free; received in user space; no kernel path: {reason}")
    return bad(address, f"no kernel path: {reason}", "grant it, or listen at udp:// or auto://")
