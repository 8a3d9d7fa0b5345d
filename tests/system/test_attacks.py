"""The attacks that users are told of, on real agents: none reads a client."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.commands import ROOT, environment

pytestmark = [pytest.mark.system]

NAMES = {*(f"A{number}" for number in range(1, 14)), "A9b"}


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
    assert all(how == "refused" for name, how in ended.items() if name != "A9b"), done.stdout
    assert ended["A9b"] == "as agreed", done.stdout
    assert last == f"{len(NAMES)} attacks; a client was read by none"
    assert done.returncode == 0, done.stderr
