"""A Flower app of somebody else's, which asks every node and writes down what comes back."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.bundle_projects import bundle_project
from tests.support.deployment import CONNECTION, Deployment

_PROJECT = bundle_project(
    "other_app.server:app", "other_app.client:app", '[tool.flwr.app.config]\nout = ""\n'
)

#: Under the time that the run has.
_ASKED_WITHIN_S = 100.0

_SERVER = """
import json, time
from pathlib import Path
from flwr.app import Message, RecordDict
from flwr.serverapp import ServerApp

app = ServerApp()

@app.main()
def main(grid, context):
    ends, told = time.monotonic() + {within_s}, {{}}
    while len(told) < {nodes} and time.monotonic() < ends:
        nodes = set(grid.get_node_ids()) - told.keys()
        asked = [Message(RecordDict(), dst_node_id=n, message_type="query.other") for n in nodes]
        for reply in grid.send_and_receive(asked, timeout=ends - time.monotonic()):
            # Else the SuperLink says that the node is away, as it is for some seconds after one of
            # its requests was lost: it is asked again.
            if reply.metadata.src_node_id in nodes:
                told[reply.metadata.src_node_id] = {told}
        time.sleep(0.1)
    Path(context.run_config["out"]).write_text(json.dumps(told))
"""


def answers_to_foreign_app(
    federation: Deployment, folder: Path, *, client: str, told: str
) -> dict[int, str]:
    """Run the app in a federation; return what each node answered to ``query.other``, by node id.

    Args:
        federation: Its nodes are asked.
        folder: For the app and its answers.
        client: Source of the ClientApp's module.
        told: Expression of what is told of a ``reply``.
    """
    app = folder / "other"
    package = app / "other_app"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "client.py").write_text(client, encoding="utf-8")
    server = _SERVER.format(nodes=federation.clients, told=told, within_s=_ASKED_WITHIN_S)
    (package / "server.py").write_text(server, encoding="utf-8")
    (app / "pyproject.toml").write_text(_PROJECT, encoding="utf-8")
    out = folder / "answers.json"
    options = ("--stream", "-c", f'out="{out}"')
    federation.flwr("run", app, CONNECTION, *options, timeout_s=120.0)
    return {int(node): answer for node, answer in json.loads(out.read_text("utf-8")).items()}
