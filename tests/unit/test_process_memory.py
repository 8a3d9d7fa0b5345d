"""What a process gives back is nothing that it needs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from retexo_fl.process_memory import _unwritable
from tests.support.commands import environment

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="smaps and madvise are Linux's")

#: Prints whether memory was given back, and whether PyTorch computes as before.
SCRIPT = """
import torch
from retexo_fl.process_memory import return_unused

def of_files():
    lines = open("/proc/self/status").read().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("RssFile"))) / 1000

def computed():
    made = torch.manual_seed(1)
    weights = torch.randn(30, 20, generator=made, requires_grad=True)
    outputs = torch.randn(50, 30, generator=made) @ weights
    torch.nn.functional.cross_entropy(outputs, torch.arange(50) % 20).backward()
    return weights.grad

first, before = computed(), of_files()
return_unused()
print(before - of_files() > 30, torch.equal(first, computed()))
"""


def test_libraries_go_and_come_back() -> None:
    said = subprocess.check_output(
        [sys.executable, "-c", SCRIPT], env=environment(), text=True, timeout=500
    )
    assert said == "True True\n"


def test_what_the_loader_has_written_stays() -> None:
    """As the addresses that it enters: each page that is given back is as in its file."""
    assert torch.ones(1).item() == 1
    given = list(_unwritable())
    assert given
    own = False
    for text in Path("/proc/self/smaps").read_text().splitlines():
        if found := re.match(r"([0-9a-f]+)-([0-9a-f]+) (\S+)", text):
            first, end, permissions = int(found[1], 16), int(found[2], 16), found[3]
            own = any(first < place + length and place < end for place, length in given)
        elif own and text.startswith("Anonymous:"):
            assert (permissions[1], text.split()[1]) == ("-", "0")
