"""Programs that look on while another program runs: which one that is, and being attached to it."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Literal

from retexo_fl.channels.xdp.attachments import Attachment, xdp_program_at
from retexo_fl.channels.xdp.libbpf import BpfProgram
from retexo_fl.channels.xdp.library import failure, libbpf

#: linux/bpf.h: ``BPF_TRACE_FENTRY``, ``BPF_TRACE_FEXIT``.
_KINDS: Final = {"before": 24, "after": 25}
#: Where ``struct bpf_prog_info`` has the program's name, and how much room is enough for it all.
_NAME: Final = slice(64, 80)
_INFO_BYTES: Final = 512


@contextmanager
def xdp_function_at(ifindex: int) -> Iterator[tuple[int, str] | None]:
    """Give a descriptor of the XDP program at an interface, and its function; None: there is none.

    Raises:
        ChannelUnavailable: Privileges are missing (CAP_SYS_ADMIN).
    """
    number = xdp_program_at(ifindex)
    if not number:
        yield None
        return
    program = libbpf().bpf_prog_get_fd_by_id(number)
    if program < 0:
        raise failure(f"XDP program {number}", program)
    try:
        yield program, _name(program)
    finally:
        os.close(program)


def attach_trace(program: BpfProgram, when: Literal["before", "after"]) -> Attachment:
    """Have a loaded program run before or after each run of its target.

    Raises:
        ChannelUnavailable: The kernel refused.
    """
    link = libbpf().bpf_link_create(program.fd, 0, _KINDS[when], None)
    if link < 0:
        raise failure(f"attach {program.name}", link)
    return Attachment("trace", lambda: os.close(link))


def _name(program: int) -> str:
    info = ctypes.create_string_buffer(_INFO_BYTES)
    size = ctypes.c_uint32(_INFO_BYTES)
    code = libbpf().bpf_obj_get_info_by_fd(program, info, ctypes.byref(size))
    if code:
        raise failure("facts of the XDP program", code)
    return info.raw[_NAME].rstrip(b"\0").decode()
