"""The attacks that users are told of, on real agents: none reads a client."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.commands import ROOT, environment

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]

NAMES = {*(f"A{number}" for number in range(1, 14)), "A9b"}
#: Ways that are left (docs/masked-sums.md).
LEFT: set[str] = set()


def test_no_attack_reads_a_client() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.attacks"],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    *lines, last = done.stdout.splitlines()
    ended = {line.split()[0]: line[5:14].strip() for line in lines}
    assert ended.keys() == NAMES, (done.stdout, done.stderr)
    read = {name for name, how in ended.items() if how == "READ"}
    assert read <= LEFT, done.stdout
    assert {name for name, how in ended.items() if how == "as agreed"} == {"A9b"}
    assert last.endswith(", ".join(name for name in ended if name in read) or "none")
    assert done.returncode == bool(read), done.stderr
