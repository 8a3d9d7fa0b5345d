"""The functions of libbpf that this package calls, their types, and what the library complained of.

libbpf is Debian's package ``libbpf1``: no compiler, no kernel headers and no other Python package
are needed to load a program.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import errno
import os
import threading
from collections import deque
from collections.abc import Callable
from ctypes import POINTER, c_char_p, c_int, c_size_t, c_uint32, c_uint64, c_void_p
from functools import cache
from typing import Final, cast

from retexo_fl.errors import ChannelUnavailable

_LIBRARY: Final = "libbpf.so.1"

#: Numbers of the kernel's interface (linux/bpf.h, linux/btf.h).
BTF_KIND_DATASEC: Final = 15
ATTACH_XDP: Final = 37
ATTACH_TCX_INGRESS: Final = 46
ATTACH_TCX_EGRESS: Final = 47

#: Loading and the print hook of libbpf are not made for several threads at once.
LOADING: Final = threading.RLock()

_COMPLAINTS: deque[str] = deque(maxlen=20)


class LinkOptions(ctypes.Structure):
    """``struct bpf_link_create_opts`` as far as ``flags``."""

    _fields_ = (("sz", c_size_t), ("flags", c_uint32), ("reserved", c_uint32))


class TestRunOptions(ctypes.Structure):
    """``struct bpf_test_run_opts``."""

    _fields_ = (
        ("sz", c_size_t),
        ("data_in", c_void_p),
        ("data_out", c_void_p),
        ("data_size_in", c_uint32),
        ("data_size_out", c_uint32),
        ("ctx_in", c_void_p),
        ("ctx_out", c_void_p),
        ("ctx_size_in", c_uint32),
        ("ctx_size_out", c_uint32),
        ("retval", c_uint32),
        ("repeat", c_int),
        ("duration", c_uint32),
        ("flags", c_uint32),
        ("cpu", c_uint32),
        ("batch_size", c_uint32),
    )


class TcHook(ctypes.Structure):
    """``struct bpf_tc_hook``."""

    _fields_ = (
        ("sz", c_size_t),
        ("ifindex", c_int),
        ("attach_point", c_int),
        ("parent", c_uint32),
        ("reserved", c_uint32),
    )


class TcOptions(ctypes.Structure):
    """``struct bpf_tc_opts``."""

    _fields_ = (
        ("sz", c_size_t),
        ("prog_fd", c_int),
        ("flags", c_uint32),
        ("prog_id", c_uint32),
        ("handle", c_uint32),
        ("priority", c_uint32),
        ("reserved", c_uint32),
    )


#: ``ring_buffer_sample_fn``.
RING_SAMPLE: Final = ctypes.CFUNCTYPE(c_int, c_void_p, c_void_p, c_size_t)
_PRINT: Final = ctypes.CFUNCTYPE(c_int, c_int, c_char_p, c_void_p)

_SIGNATURES: Final = (
    ("bpf_object__open_file", c_void_p, (c_char_p, c_void_p)),
    ("bpf_object__load", c_int, (c_void_p,)),
    ("bpf_object__close", None, (c_void_p,)),
    ("bpf_object__btf", c_void_p, (c_void_p,)),
    ("bpf_object__next_program", c_void_p, (c_void_p, c_void_p)),
    ("bpf_object__next_map", c_void_p, (c_void_p, c_void_p)),
    ("bpf_program__name", c_char_p, (c_void_p,)),
    ("bpf_program__fd", c_int, (c_void_p,)),
    ("bpf_program__set_autoload", c_int, (c_void_p, ctypes.c_bool)),
    ("bpf_program__set_log_buf", c_int, (c_void_p, c_void_p, c_size_t)),
    ("bpf_map__name", c_char_p, (c_void_p,)),
    ("bpf_map__fd", c_int, (c_void_p,)),
    ("bpf_map__key_size", c_uint32, (c_void_p,)),
    ("bpf_map__value_size", c_uint32, (c_void_p,)),
    ("bpf_map__max_entries", c_uint32, (c_void_p,)),
    ("bpf_map__type", c_int, (c_void_p,)),
    ("bpf_map__set_max_entries", c_int, (c_void_p, c_uint32)),
    ("bpf_map__initial_value", c_void_p, (c_void_p, POINTER(c_size_t))),
    ("bpf_map_lookup_elem", c_int, (c_int, c_void_p, c_void_p)),
    ("bpf_map_update_elem", c_int, (c_int, c_void_p, c_void_p, c_uint64)),
    ("bpf_map_get_next_key", c_int, (c_int, c_void_p, c_void_p)),
    ("bpf_map_delete_elem", c_int, (c_int, c_void_p)),
    ("bpf_link_create", c_int, (c_int, c_int, c_int, c_void_p)),
    ("bpf_xdp_query_id", c_int, (c_int, c_int, POINTER(c_uint32))),
    ("bpf_prog_test_run_opts", c_int, (c_int, c_void_p)),
    ("bpf_tc_hook_create", c_int, (c_void_p,)),
    ("bpf_tc_attach", c_int, (c_void_p, c_void_p)),
    ("bpf_tc_detach", c_int, (c_void_p, c_void_p)),
    ("ring_buffer__new", c_void_p, (c_int, RING_SAMPLE, c_void_p, c_void_p)),
    ("ring_buffer__consume", c_int, (c_void_p,)),
    ("ring_buffer__free", None, (c_void_p,)),
    ("btf__find_by_name_kind", c_int, (c_void_p, c_char_p, c_uint32)),
    ("btf__type_by_id", c_void_p, (c_void_p, c_uint32)),
    ("btf__name_by_offset", c_char_p, (c_void_p, c_uint32)),
    ("libbpf_num_possible_cpus", c_int, ()),
    ("libbpf_set_print", c_void_p, (_PRINT,)),
)


@cache
def libbpf() -> ctypes.CDLL:
    """Return the library, with the types of what is called declared.

    Raises:
        ChannelUnavailable: It is not installed, or too old.
    """
    try:
        library = ctypes.CDLL(_LIBRARY, use_errno=True)
        for name, result, arguments in _SIGNATURES:
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
    except (OSError, AttributeError) as error:
        advice = "install libbpf 1 (Debian: apt-get install libbpf1)"
        raise ChannelUnavailable(f"{_LIBRARY}: {error}; {advice}") from error
    library.libbpf_set_print(_KEEP_COMPLAINT)
    return library


def forget_complaints() -> None:
    """Forget what the library printed, before a call whose words matter."""
    _COMPLAINTS.clear()


def complaints() -> str:
    """Return what the library printed since they were forgotten, as one line."""
    return "; ".join(_COMPLAINTS)


def failure(what: str, code: int) -> ChannelUnavailable:
    """Return the error for a call that failed.

    Args:
        what: What was tried, and where.
        code: What libbpf returned: a negative error number, or zero with it in ``errno``.
    """
    number = -code if code < 0 else ctypes.get_errno()
    reason = os.strerror(number)
    if number == errno.EPERM:
        reason += " (needs CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN)"
    return ChannelUnavailable(f"{what}: {reason}")


def possible_cpus() -> int:
    """Return for how many processors the kernel keeps values apart."""
    return int(libbpf().libbpf_num_possible_cpus())


def _keep_complaint(level: int, form: bytes, arguments: int) -> int:
    # Warnings and information only: the library has its own level for what it does step by step.
    if level > 1:
        return 0
    text = ctypes.create_string_buffer(512)
    _vsnprintf()(text, len(text), form, c_void_p(arguments))
    _COMPLAINTS.append(text.value.decode(errors="replace").strip())
    return 0


@cache
def _vsnprintf() -> Callable[..., int]:
    function = ctypes.CDLL(None).vsnprintf
    function.restype = c_int
    function.argtypes = (c_char_p, c_size_t, c_char_p, c_void_p)
    return cast(Callable[..., int], function)


#: Kept here for as long as the library may call it.
_KEEP_COMPLAINT: Final = _PRINT(_keep_complaint)
