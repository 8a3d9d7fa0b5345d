from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from retexo_fl.additions.devices.sampling import free_memory
from retexo_fl.additions.devices.sampling.free_memory import free_bytes

CPU = torch.device("cpu")


def test_linux_tells_what_can_be_taken_with_its_file_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = tmp_path / "meminfo"
    facts.write_text("MemTotal: 9000 kB\nMemFree: 100 kB\nMemAvailable:    5000 kB\nCached: 1 kB\n")
    monkeypatch.setattr(free_memory, "_MEMORY_FACTS", facts)
    assert free_bytes(CPU) == 5000 * 1024


@pytest.mark.parametrize("content", [None, "MemTotal: 9000 kB\n"])
def test_system_that_does_not_tell_is_taken_for_empty(
    content: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = tmp_path / "meminfo"
    if content is not None:
        facts.write_text(content)
    monkeypatch.setattr(free_memory, "_MEMORY_FACTS", facts)
    assert free_bytes(CPU) == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def test_this_machine_has_some_and_no_more_than_all() -> None:
    assert 0 < free_bytes(CPU) <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.gpu
def test_gpu_has_less_free_while_a_tensor_is_there() -> None:
    device = torch.device("cuda:0")
    torch.cuda.empty_cache()
    before = free_bytes(device)
    taken = torch.empty(2**28, dtype=torch.uint8, device=device)
    assert free_bytes(device) <= before - taken.numel() // 2
