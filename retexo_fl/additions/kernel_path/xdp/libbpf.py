"""BPF object files: opened, sized, loaded, their programs run and their maps seen as arrays.

    with BpfObject(path) as bpf:
        bpf.set_constant("PORT", 7411)
        bpf.maps["acc"].resize(4096)
        bpf.load()
        view = bpf.maps["acc"].array(np.dtype((np.int32, 16)))
        result = bpf.programs["aggregate"].test_run(frame)
        attachment = bpf.programs["aggregate"].attach_xdp(ifindex)

A program is attached by a link: it goes with the process, whatever ends that, and takes no
capability to detach.
"""

from __future__ import annotations

import ctypes
import errno
import struct
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from retexo_fl.additions.kernel_path.xdp.attachments import (
    Attachment,
    TcDirection,
    XdpMode,
    attach_tc,
    attach_xdp,
)
from retexo_fl.additions.kernel_path.xdp.library import (
    BTF_KIND_DATASEC,
    LOADING,
    TestRunOptions,
    complaints,
    failure,
    forget_complaints,
    libbpf,
)
from retexo_fl.additions.kernel_path.xdp.maps import BpfMap, RingBuffer
from retexo_fl.errors import ChannelUnavailable

__all__ = ["BpfMap", "BpfObject", "BpfProgram", "RingBuffer", "TestRun"]

_LOG_BYTES: Final = 1 << 24
#: What an error shows of the verifier's log: the reason is at its end.
_LOG_SHOWN: Final = 600
#: A program may make a packet longer by this much.
_OUTPUT_MARGIN_BYTES: Final = 256
_CONSTANTS: Final = ".rodata"


class BpfObject:
    """An object file; what it opened is closed by :meth:`close`, or at the end of ``with``.

    Args:
        path: A BPF ELF object with BTF.

    Raises:
        ChannelUnavailable: libbpf is missing, or the file is none that it can open.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._library = libbpf()
        with LOADING:
            forget_complaints()
            handle = self._library.bpf_object__open_file(str(path).encode(), None)
            if not handle:
                raise ChannelUnavailable(f"{failure(str(path), 0)} ({complaints()})")
        self._handle: int | None = handle
        self.programs = {
            program.name: program for program in map(BpfProgram, self._each("program"))
        }
        self.maps = {each.name: each for each in map(BpfMap, self._each("map"))}

    def set_constant(self, name: str, value: int) -> None:
        """Set a variable of ``.rodata`` before loading; the verifier then knows its value.

        Args:
            name: As in the C source, where it is ``const volatile``.
            value: Fits the variable's size.
        """
        offset, size = self._constants()[name]
        where, _ = self.variables(_CONSTANTS).initial_value()
        ctypes.memmove(where + offset, value.to_bytes(size, "little"), size)

    def variables(self, section: str) -> BpfMap:
        """Return the map that holds a section's variables: ``.rodata``, ``.data`` or ``.bss``."""
        return next(each for name, each in self.maps.items() if name.endswith(section))

    def load(self, *, only: frozenset[str] | None = None) -> None:
        """Create the maps, and have the kernel verify and take the programs.

        Args:
            only: Names of the programs to load; None for all.

        Raises:
            ChannelUnavailable: The kernel refused; the message ends with the verifier's last words.
        """
        logs = [ctypes.create_string_buffer(_LOG_BYTES) for _ in self.programs]
        for program, log in zip(self.programs.values(), logs, strict=True):
            program.prepare(log, is_wanted=only is None or program.name in only)
        with LOADING:
            forget_complaints()
            code = self._library.bpf_object__load(self._handle)
            if code:
                raise self._refusal(code, [log.value.decode(errors="replace") for log in logs])
        # The buffers end here; libbpf must not write to them again.
        for program in self.programs.values():
            program.forget_log()

    def close(self) -> None:
        """Close programs and maps; arrays that were returned stay valid."""
        if self._handle is not None:
            self._library.bpf_object__close(self._handle)
            self._handle = None

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close it."""
        self.close()

    def _each(self, kind: str) -> list[int]:
        following = getattr(self._library, f"bpf_object__next_{kind}")
        found: list[int] = []
        while each := following(self._handle, found[-1] if found else None):
            found.append(each)
        return found

    def _refusal(self, code: int, logs: list[str]) -> ChannelUnavailable:
        error = failure(f"load {self.path.name}", code)
        if code == -errno.EPERM:
            return error
        said = [log for log in logs if log.strip()] or [complaints()]
        return ChannelUnavailable(f"{error}: {' '.join(said[-1][-_LOG_SHOWN:].split())}")

    def _constants(self) -> dict[str, tuple[int, int]]:
        """Return offset and size of each variable of ``.rodata``, as BTF has them."""
        btf = self._library.bpf_object__btf(self._handle)
        section = self._library.btf__find_by_name_kind(btf, _CONSTANTS.encode(), BTF_KIND_DATASEC)
        if section < 0:
            return {}
        # struct btf_type: name, info, size; its members follow it (linux/btf.h).
        where = self._library.btf__type_by_id(btf, section)
        (info,) = struct.unpack("<I", ctypes.string_at(where + 4, 4))
        members = ctypes.string_at(where + 12, 12 * (info & 0xFFFF))
        found = {}
        for variable, offset, size in struct.iter_unpack("<III", members):
            name = ctypes.cast(self._library.btf__type_by_id(btf, variable), ctypes.c_void_p)
            (text,) = struct.unpack("<I", ctypes.string_at(name, 4))
            found[self._library.btf__name_by_offset(btf, text).decode()] = (offset, size)
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class TestRun:
    """What ``BPF_PROG_TEST_RUN`` gave.

    Attributes:
        code: What the program returned (``XDP_DROP`` 1, ``XDP_PASS`` 2, ``XDP_TX`` 3).
        frame: The frame as the program left it.
        duration_ns: Mean of one run.
    """

    code: int
    frame: bytes
    duration_ns: int


class BpfProgram:
    """One program of an object.

    Args:
        handle: ``struct bpf_program *``.
    """

    def __init__(self, handle: int) -> None:
        self._library = libbpf()
        self._handle = handle
        self.name: str = self._library.bpf_program__name(handle).decode()

    @property
    def fd(self) -> int:
        """Its file descriptor, once loaded."""
        return int(self._library.bpf_program__fd(self._handle))

    def prepare(self, log: ctypes.Array[ctypes.c_char], *, is_wanted: bool) -> None:
        """Say where the verifier's log goes, and whether to load the program at all."""
        self._library.bpf_program__set_autoload(self._handle, is_wanted)
        self._library.bpf_program__set_log_buf(self._handle, ctypes.addressof(log), len(log))

    def forget_log(self) -> None:
        """Take the buffer of the log back."""
        self._library.bpf_program__set_log_buf(self._handle, None, 0)

    def test_run(self, frame: bytes, *, repeat: int = 1) -> TestRun:
        """Run the program on a frame that comes from nowhere.

        Args:
            frame: Begins with the Ethernet header.
            repeat: How often; the output is the last run's, whose input an earlier run may have
                changed.

        Raises:
            ChannelUnavailable: The kernel refused.
        """
        given = ctypes.create_string_buffer(frame, len(frame))
        taken = ctypes.create_string_buffer(len(frame) + _OUTPUT_MARGIN_BYTES)
        options = TestRunOptions(
            sz=ctypes.sizeof(TestRunOptions),
            data_in=ctypes.addressof(given),
            data_size_in=len(frame),
            data_out=ctypes.addressof(taken),
            data_size_out=len(taken),
            repeat=repeat,
        )
        code = self._library.bpf_prog_test_run_opts(self.fd, ctypes.byref(options))
        if code:
            raise failure(f"test run of {self.name}", code)
        return TestRun(
            code=options.retval,
            frame=taken.raw[: options.data_size_out],
            duration_ns=options.duration,
        )

    def attach_xdp(self, ifindex: int, mode: XdpMode = "auto") -> Attachment:
        """Have every frame that an interface receives go through the program.

        Args:
            ifindex: Number of the interface in this network namespace.
            mode: ``native`` (in the driver), ``generic`` (after it, any device), or ``auto``: the
                first that works, in this order.

        Raises:
            ChannelUnavailable: Another XDP program is there, or the device takes none.
        """
        return attach_xdp(self.fd, ifindex, mode)

    def attach_tc(self, ifindex: int, direction: TcDirection) -> Attachment:
        """Have every packet of one direction go through the program (traffic control).

        Several programs of a direction run one after the other as long as they return
        ``TC_ACT_UNSPEC`` (-1); any other code ends the row.

        Raises:
            ChannelUnavailable: The kernel refused.
        """
        return attach_tc(self.fd, ifindex, direction)
