"""Flower's engine without Flower's processes: a run's two apps in one process of its own.

For what is done before, beside and after the engine; a run in it starts in seconds, where
Flower's and Ray's own processes compute for twenty (``tests/system/test_flower_engine.py``).
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from typing import Any

from retexo_fl.errors import EngineFailed
from retexo_fl.simulation.flower_bundle import BundleApps, Scalar

_APPS = """
import json, sys
from flwr.app import Context, RecordDict
from retexo_fl.simulation.inline_grid import InlineGrid
source, apps = json.loads(sys.argv[1]), {"server": {}, "client": {}}
for kind, names in apps.items():
    exec(source[kind], names)
values, clients = source["run_config"], source["num_clients"]
context = Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config=values)
apps["server"]["app"](InlineGrid(apps["client"]["app"], clients, values), context)
"""


def run_apps(
    run_config: Mapping[str, Scalar],
    *,
    num_clients: int,
    tick: Callable[[], None],
    apps: BundleApps,
    ray_address: str,
) -> None:
    """Run as ``run_flower_simulation`` does; what ``tick`` raises kills the apps."""
    assert not ray_address, "no cluster is played"
    source: dict[str, Any] = {"server": apps.server, "client": apps.client}
    source |= {"run_config": dict(run_config), "num_clients": num_clients}
    with (
        tempfile.TemporaryFile("w+") as log,
        subprocess.Popen(
            [sys.executable, "-c", _APPS, json.dumps(source)],
            stdout=log,
            stderr=log,
        ) as process,
    ):
        try:
            while process.poll() is None:
                tick()
                time.sleep(0.02)
        finally:
            process.kill()
        tick()
        log.seek(0)
        if process.returncode:
            raise EngineFailed(f"the run failed\n{log.read()}")
