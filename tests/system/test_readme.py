"""Commands of README and of the page for users of Flower run; CI itself runs the first two."""

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
from tests.support.runs import result_of

pytestmark = [pytest.mark.system]

BLOCKS = [
    pytest.param(block, id=block.split("\n")[-1].strip())
    for block in [*readme_blocks()[2:], *readme_blocks("docs/flower.md")]
]


@pytest.mark.parametrize("block", BLOCKS)
def test_readme_block_runs(tmp_path: Path, block: str) -> None:
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
