"""What `retexo run --superlink` says of the end of a run."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path

import pytest

from retexo_fl.cli.deployed_run import _judge, _Watch
from retexo_fl.cli.superlink import RunState
from retexo_fl.errors import EngineFailed
from retexo_fl.progress import LiveTable

_UNKNOWN = RunState(status="finished:failed", details="Task failed with\nunknown error.")


@pytest.mark.parametrize(
    ("state", "told"),
    [
        ("interrupted", "^the run .*stopped.*SuperLink"),
        ("failed", r"finished:failed: Task failed with unknown error\.$"),
    ],
)
def test_a_run_that_lost_its_superlink_is_told_from_a_failed_one(
    tmp_path: Path, state: str, told: str
) -> None:
    (tmp_path / "status.json").write_text(json.dumps({"state": state, "error": None}))
    table = LiveTable(dataset="parts", model="sage", engine="deployment", quiet=True)
    with ExitStack() as stack:
        watch = _Watch(run_path=tmp_path, before=None, table=table, quiet=True, stack=stack)
        with pytest.raises(EngineFailed, match=told):
            _judge(_UNKNOWN, watch)
