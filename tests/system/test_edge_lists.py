"""Through Flower, too, the user of a run is told which clients list other edges."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.support.cli import PROGRAM, TINY, environment
from tests.support.edge_lists import ADVICE, make_parts_with, without_first

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]


def test_parts_listing_other_edges_end_a_flower_run_in_one_line(tmp_path: Path) -> None:
    parts = make_parts_with(tmp_path, without_first)
    done = subprocess.run(
        [*PROGRAM, "run", "--engine", "flower", "--partitions", str(parts), *TINY],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    told = rf"retexo: error: client 0 .*2 edges .*client 1.* 1; {re.escape(ADVICE)}\n"
    assert re.fullmatch(told, done.stderr)
    assert done.returncode == 2
    assert not list((tmp_path / "runs").glob("*"))
