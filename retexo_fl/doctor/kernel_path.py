"""The kernel path: whether programs that take datagrams in the kernel can be loaded here."""

from __future__ import annotations

from collections.abc import Iterable

from retexo_fl.doctor.finding import Finding, absent, doubtful, good

_SCHEMES = ("xdp:", "auto:")


def why_no_kernel_path() -> str:
    """Return why programs in the kernel cannot take datagrams here; empty where they can."""
    try:
        from retexo_fl.kernel_path.xdp.probe import probe
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("retexo_fl.kernel_path"):
            raise
        return "not in this installation"
    found = probe()
    return "" if found.ok else found.reason


def examine_kernel_path(listen: Iterable[str]) -> Finding:
    """Load the program, have it take one packet, and unload it; no interface is touched.

    The result holds for the user who runs it: an agent may have privileges that this user lacks.

    Args:
        listen: Addresses that the client listens at.
    """
    reason = why_no_kernel_path()
    if not reason:
        return good("kernel path", "available (native/generic untested until attached)")
    if not any(address.startswith(_SCHEMES) for address in listen):
        return absent("kernel path", reason)
    advice = (
        "install libbpf1, and give the agent CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN; or listen at "
        "udp://"
    )
    return doubtful("kernel path", reason, advice)
