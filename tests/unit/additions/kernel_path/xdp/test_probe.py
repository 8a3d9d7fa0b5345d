"""Trying the kernel path: what is missing is named, and nothing stays behind."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

import pytest

from retexo_fl.additions.kernel_path.xdp import probe as module
from retexo_fl.additions.kernel_path.xdp.library import libbpf
from retexo_fl.additions.kernel_path.xdp.probe import Probe, probe
from retexo_fl.errors import ChannelUnavailable
from tests.support.kernel import require_bpf

_TELL = (
    "import json, sys\n"
    "from retexo_fl.additions.kernel_path.xdp.probe import probe\n"
    "found = probe()\n"
    "print(json.dumps([found.ok, found.reason, 'numba' in sys.modules, 'torch' in sys.modules]))\n"
)


def test_kernel_that_takes_the_program_is_good() -> None:
    require_bpf()
    assert probe() == Probe(ok=True)


@pytest.mark.parametrize(
    ("kept", "missing"),
    [
        ("-all", "missing CAP_BPF, CAP_PERFMON, CAP_NET_ADMIN"),
        ("-all,+bpf,+net_admin", "missing CAP_PERFMON"),
        ("-all,+sys_admin", "missing CAP_NET_ADMIN"),
    ],
)
def test_missing_privileges_are_named_without_heavy_libraries(kept: str, missing: str) -> None:
    require_bpf()
    setpriv = shutil.which("setpriv")
    assert setpriv is not None, "setpriv (util-linux) takes privileges away"
    ran = subprocess.run(
        [setpriv, f"--bounding-set={kept}", sys.executable, "-c", _TELL],
        capture_output=True,
        text=True,
        check=True,
        timeout=500,
    )
    assert json.loads(ran.stdout) == [False, missing, False, False]


def test_missing_library_is_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise ChannelUnavailable("libbpf.so.1: not here; install libbpf 1")

    monkeypatch.setattr(module, "libbpf", missing)
    assert probe() == Probe(ok=False, reason="libbpf.so.1: not here; install libbpf 1")


def test_library_without_a_function_is_too_old(monkeypatch: pytest.MonkeyPatch) -> None:
    require_bpf()
    from retexo_fl.additions.kernel_path.xdp import library

    monkeypatch.setattr(library, "_SIGNATURES", (("bpf_of_the_future", None, ()),))
    libbpf.cache_clear()
    try:
        with pytest.raises(ChannelUnavailable, match="bpf_of_the_future.*install libbpf 1"):
            libbpf()
    finally:
        monkeypatch.undo()
        libbpf.cache_clear()


def test_program_that_adds_wrongly_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    require_bpf()
    packet = module._packet()
    # A packet without its flag is taken, but not acknowledged.
    monkeypatch.setattr(module, "_packet", lambda: packet[:7] + b"\0" + packet[8:])
    found = probe()
    assert not found.ok
    assert "test packet" in found.reason


def test_interface_that_is_not_there_is_the_reason() -> None:
    require_bpf()
    found = probe("rtx-none")
    assert not found.ok
    assert "interface rtx-none" in found.reason
