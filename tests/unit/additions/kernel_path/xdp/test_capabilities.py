"""Privileges: read as the kernel has them, named where missing, and dropped for good."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from retexo_fl.additions.kernel_path.xdp.capabilities import (
    NEEDED,
    Capability,
    held_capabilities,
    missing_capabilities,
)
from tests.support.kernel import require_bpf

_DROP = """
import json
import threading
from pathlib import Path
from retexo_fl.additions.kernel_path.xdp.capabilities import drop_after_loading

def masks():
    lines = Path("/proc/thread-self/status").read_text().splitlines()
    return [line.split()[1] for line in lines if line.startswith(("CapInh", "CapPrm", "CapEff"))]

before, go, told = masks(), threading.Event(), []
def old():
    go.wait(20)
    told.append(masks())
def new():
    told.append(masks())
first = threading.Thread(target=old)
first.start()
drop_after_loading()
second = threading.Thread(target=new)
second.start()
second.join(20)
go.set()
first.join(20)
print(json.dumps([before, masks(), *told]))
"""


def test_what_is_held_is_what_procfs_says() -> None:
    (line,) = (
        line
        for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines()
        if line.startswith("CapEff")
    )
    mask = int(line.split()[1], 16)
    assert held_capabilities() == {each for each in Capability if mask & 1 << each}


@pytest.mark.parametrize(
    ("held", "missing"),
    [
        (set(Capability), ()),
        (set(NEEDED), ()),
        (set(), ("CAP_BPF", "CAP_PERFMON", "CAP_NET_ADMIN")),
        ({Capability.CAP_SYS_ADMIN}, ("CAP_NET_ADMIN",)),
        ({Capability.CAP_BPF, Capability.CAP_NET_RAW}, ("CAP_PERFMON", "CAP_NET_ADMIN")),
    ],
)
def test_missing_ones_are_named(held: set[Capability], missing: tuple[str, ...]) -> None:
    assert missing_capabilities(held) == missing


def test_dropping_leaves_the_others_and_older_threads_alone() -> None:
    require_bpf()
    ran = subprocess.run(
        [sys.executable, "-c", _DROP], capture_output=True, text=True, check=True, timeout=500
    )
    told = json.loads(ran.stdout)
    before, after, new, old = ([int(mask, 16) for mask in masks] for masks in told)
    dropped = sum(1 << each for each in Capability)
    assert after == [mask & ~dropped for mask in before]
    assert new == after
    assert old == before
