"""A loaded program at an interface: XDP and traffic control, attached by links where there are.

A link is a file descriptor. The kernel detaches the program when it is closed, so also when the
process dies, and closing it takes no capability.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Literal

from retexo_fl.additions.kernel_path.xdp.library import (
    ATTACH_TCX_EGRESS,
    ATTACH_TCX_INGRESS,
    ATTACH_XDP,
    LOADING,
    LinkOptions,
    TcHook,
    TcOptions,
    failure,
    libbpf,
)
from retexo_fl.errors import ChannelUnavailable

XdpMode = Literal["auto", "native", "generic"]
TcDirection = Literal["ingress", "egress"]

#: ``XDP_FLAGS_*`` of linux/if_link.h.
_XDP_FLAGS: Final = {"generic": 1 << 1, "native": 1 << 2}
_TCX: Final = {"ingress": ATTACH_TCX_INGRESS, "egress": ATTACH_TCX_EGRESS}
#: ``BPF_TC_*`` of bpf/libbpf.h.
_TC_POINTS: Final = {"ingress": 1, "egress": 2}
#: The error of a kernel before 6.6 for a kind of link that it does not have.
_UNKNOWN_LINK: Final = frozenset({errno.EINVAL, errno.EOPNOTSUPP})


@dataclass(slots=True)
class Attachment:
    """A program at an interface.

    Attributes:
        mode: ``native`` or ``generic`` (XDP), ``tcx`` or ``clsact`` (traffic control). A program
            attached as ``clsact`` stays when the process dies.
    """

    mode: str
    _detach: Callable[[], None]
    _is_attached: bool = field(default=True, init=False)

    def detach(self) -> None:
        """Take the program away; a second call does nothing."""
        if self._is_attached:
            self._is_attached = False
            self._detach()


def attach_xdp(program_fd: int, ifindex: int, mode: XdpMode = "auto") -> Attachment:
    """See :meth:`~retexo_fl.additions.kernel_path.xdp.libbpf.BpfProgram.attach_xdp`."""
    if other := xdp_program_at(ifindex):
        raise ChannelUnavailable(
            f"{_interface(ifindex)}: XDP program {other} is attached; detach it first "
            "(ip link set dev NAME xdp off), or use udp"
        )
    tried = ("native", "generic") if mode == "auto" else (mode,)
    code = 0
    for each in tried:
        code = _link(program_fd, ifindex, ATTACH_XDP, _XDP_FLAGS[each])
        if code >= 0:
            return Attachment(each, _closing(code))
    raise failure(f"{_interface(ifindex)}: attach XDP ({' or '.join(tried)})", code)


def xdp_program_at(ifindex: int) -> int:
    """Return the id of the XDP program at an interface; 0 if there is none.

    Raises:
        ChannelUnavailable: There is no such interface.
    """
    found = ctypes.c_uint32()
    code = libbpf().bpf_xdp_query_id(ifindex, 0, ctypes.byref(found))
    if code:
        raise failure(_interface(ifindex), code)
    return found.value


def attach_tc(program_fd: int, ifindex: int, direction: TcDirection) -> Attachment:
    """See :meth:`~retexo_fl.additions.kernel_path.xdp.libbpf.BpfProgram.attach_tc`."""
    code = _link(program_fd, ifindex, _TCX[direction], 0)
    if code >= 0:
        return Attachment("tcx", _closing(code))
    if -code not in _UNKNOWN_LINK:
        raise failure(f"{_interface(ifindex)}: attach to {direction}", code)
    return _attach_clsact(program_fd, ifindex, direction)


def _attach_clsact(program_fd: int, ifindex: int, direction: TcDirection) -> Attachment:
    library = libbpf()
    hook = TcHook(
        sz=ctypes.sizeof(TcHook), ifindex=ifindex, attach_point=_TC_POINTS[direction], parent=0
    )
    options = TcOptions(sz=ctypes.sizeof(TcOptions), prog_fd=program_fd)
    where = f"{_interface(ifindex)}: attach to {direction}"
    with LOADING:
        code = library.bpf_tc_hook_create(ctypes.byref(hook))
        if code and code != -errno.EEXIST:
            raise failure(where, code)
        code = library.bpf_tc_attach(ctypes.byref(hook), ctypes.byref(options))
    if code:
        raise failure(where, code)

    def detach() -> None:
        options.flags = options.prog_fd = options.prog_id = 0
        code = library.bpf_tc_detach(ctypes.byref(hook), ctypes.byref(options))
        if code and code != -errno.ENOENT:
            raise failure(f"{_interface(ifindex)}: detach from {direction}", code)

    return Attachment("clsact", detach)


def _link(program_fd: int, ifindex: int, kind: int, flags: int) -> int:
    """Return the link's file descriptor, or a negative error number."""
    options = LinkOptions(sz=ctypes.sizeof(LinkOptions), flags=flags)
    return int(libbpf().bpf_link_create(program_fd, ifindex, kind, ctypes.byref(options)))


def _closing(fd: int) -> Callable[[], None]:
    return lambda: os.close(fd)


def _interface(ifindex: int) -> str:
    with contextlib.suppress(OSError):
        return socket.if_indextoname(ifindex)
    return f"interface {ifindex}"
