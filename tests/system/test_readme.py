"""Every command of README runs as it stands there; the first two are run by CI itself."""

from __future__ import annotations

import json
import re
import tempfile
from pathlib import Path

import pytest

from tests.support.commands import (
    Marked,
    copy_tree,
    environment,
    offline,
    readme_blocks,
    run_command,
    search_path,
)
from tests.support.data import data_dir
from tests.support.runs import result_of

pytestmark = [pytest.mark.system]

#: What has a folder of data sets in it needs one, and trains for long: each night.
BLOCKS = [
    pytest.param(
        block,
        id=block.split("\n")[-1].strip(),
        marks=[pytest.mark.real_graphs, pytest.mark.slow] if "DIR" in block else [],
    )
    for block in readme_blocks()[2:]
]


@pytest.mark.parametrize("block", BLOCKS)
def test_readme_block_runs(tmp_path: Path, block: str) -> None:
    if "DIR" in block:
        block = block.replace("DIR", str(data_dir()))
    mark = Marked()
    with tempfile.TemporaryDirectory(prefix="rtx-") as place:
        variables = {
            "PATH": search_path(),
            "FLWR_HOME": f"{place}/home",
            "TMPDIR": place,
            **mark.variables,
        }
        tree = copy_tree(tmp_path)
        try:
            run_command(
                # In a network of its own, a daemon that another run left is not found.
                offline(["bash", "-euo", "pipefail", "-c", block]),
                cwd=tree,
                env=environment(variables),
                timeout_s=350,
            )
            # Flower leaves its daemon running, as the page says; `retexo` leaves nothing.
            assert bool(mark.alive()) == ("flwr run" in block)
        finally:
            mark.end_all()
    for run in re.findall(r"runs/\w+", block):
        result = result_of(tree / run)
        assert result["bytes"]["payload"]["boundary"] > 0
        assert result["engine"] == ("flower" if "flwr run" in block else "inline")
        assert f'engine = "{result["engine"]}"' in (tree / run / "config.toml").read_text()
        assert json.loads((tree / run / "status.json").read_text())["state"] == "finished"
        assert (tree / run / "report.html").stat().st_size > 0
