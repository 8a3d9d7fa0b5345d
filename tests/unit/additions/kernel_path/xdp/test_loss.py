"""The tests' own bad cable, on frames that come from nowhere."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from retexo_fl.additions.kernel_path.xdp.build import CLANG_VERSION, build, clang_version, object_of
from retexo_fl.additions.kernel_path.xdp.libbpf import BpfObject
from retexo_fl.additions.kernel_path.xdp.udp_frame import udp_frame
from tests.support.kernel import require_bpf
from tests.support.loss import PROGRAM

PORT = 7411
MACS = (b"\2to...", b"\2from.")
FROM, TO = ("192.0.2.1", 40_001), ("192.0.2.2", PORT)
DROPS, GOES_ON = 2, 2**32 - 1


def test_its_object_is_that_of_its_source(tmp_path: Path) -> None:
    if clang_version() != CLANG_VERSION:
        pytest.skip("needs clang and llvm-strip to rebuild the BPF objects")
    target = tmp_path / PROGRAM.name
    build(PROGRAM.with_name("loss.bpf.c"), target)
    assert target.read_bytes() == object_of(PROGRAM.with_name("loss.bpf.c")).read_bytes()


def test_a_seed_decides_lost_frames_in_about_the_share_asked_for() -> None:
    require_bpf()
    first, again, other = (lost_of(1000, share=0.05, seed=seed) for seed in (1, 1, 2))
    assert first == again != other
    assert 25 < len(first) < 80
    assert lost_of(50, share=0.0, seed=1) == []
    assert lost_of(50, share=1.0, seed=1) == list(range(50))


def test_frames_of_other_ports_and_answers_are_told_apart() -> None:
    require_bpf()
    with loaded(share=1.0, seed=1) as cable:
        program = cable.programs["bad_cable"]
        other = udp_frame(MACS, FROM, (TO[0], PORT + 1), b"x" * 20)
        tcp = udp_frame(MACS, FROM, TO, b"x" * 20)
        tcp = tcp[:23] + b"\x06" + tcp[24:]
        assert program.test_run(other).code == program.test_run(tcp).code == GOES_ON
        assert program.test_run(udp_frame(MACS, TO, FROM, b"x" * 20)).code == DROPS


def lost_of(count: int, *, share: float, seed: int) -> list[int]:
    frame = udp_frame(MACS, FROM, TO, b"x" * 20)
    with loaded(share=share, seed=seed) as cable:
        program = cable.programs["bad_cable"]
        return [place for place in range(count) if program.test_run(frame).code == DROPS]


def loaded(*, share: float, seed: int) -> BpfObject:
    made = BpfObject(PROGRAM)
    made.set_constant("udp_port", socket.htons(PORT))
    made.set_constant("lost_share", min(round(share * 2**32), 2**32 - 1))
    made.set_constant("seed", seed)
    made.load(only=frozenset({"bad_cable"}))
    return made
