"""As many clients as nodes: 2,708 of one node each; minutes, so marked slow."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.commands import environment, program
from tests.support.data import cora_dir
from tests.support.runs import result_of, train

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

CLIENTS = 2708
MOST_BYTES = 10**9


def test_cora_with_one_node_per_client_learns_like_two_clients(tmp_path: Path) -> None:
    keys = {"dataset": "cora", "data-dir": str(cora_dir()), "rounds": "20"}
    out = tmp_path / "single"
    options = [word for key, value in keys.items() for word in (f"--{key}", value)]
    command = [program("retexo"), "run", *options, "--partitioner", "one-node"]
    command += ["--clients", str(CLIENTS), "--out", str(out), "--quiet"]
    begun = time.monotonic()
    with subprocess.Popen(command, cwd=tmp_path, env=environment()) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    seconds, most_bytes = time.monotonic() - begun, usage.ru_maxrss * 1024
    assert process.returncode == 0
    result = result_of(out)
    pair = result_of(
        train(tmp_path / "pair", dataset="cora", data_dir=cora_dir(), rounds=20, clients=2)
    )
    sys.stdout.write(
        f"\n{CLIENTS} clients: {seconds:.0f} s wall, {most_bytes / 1e9:.2f} GB, test accuracy "
        f"{result['test_accuracy']:.4f} (2 clients: {pair['test_accuracy']:.4f})\n"
    )
    assert most_bytes < MOST_BYTES
    assert result["test_accuracy"] == pytest.approx(pair["test_accuracy"], abs=0.01)
    # Only clients with train nodes return updates: as many as the part of one node allows.
    trained = sum(row["train"] > 0 for row in result["client_table"])
    assert 0 < trained < CLIENTS / 4
    of_one = pair["bytes"]["raw"]["updates_up"] // 2
    assert result["bytes"]["raw"]["updates_up"] == trained * of_one
