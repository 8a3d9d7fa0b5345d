"""A Flower app of somebody else's, which asks every node and writes down what comes back."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.bundle_projects import bundle_project
from tests.support.deployment import CONNECTION, Deployment

_PROJECT = bundle_project(
    "other_app.server:app", "other_app.client:app", '[tool.flwr.app.config]\nout = ""\n'
)

_SERVER = """
import json, time
from pathlib import Path
from flwr.app import Message, RecordDict
from flwr.serverapp import ServerApp

app = ServerApp()

@app.main()
def main(grid, context):
    while len(nodes := list(grid.get_node_ids())) < {nodes}:
        time.sleep(0.1)
    asked = [Message(RecordDict(), dst_node_id=n, message_type="query.other") for n in nodes]
    ids, told = set(grid.push_messages(asked)), {{}}
    while ids:
        for reply in grid.pull_messages(ids):
            ids.discard(reply.metadata.reply_to_message_id)
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
    server = _SERVER.format(nodes=federation.clients, told=told)
    (package / "server.py").write_text(server, encoding="utf-8")
    (app / "pyproject.toml").write_text(_PROJECT, encoding="utf-8")
    out = folder / "answers.json"
    options = ("--stream", "-c", f'out="{out}"')
    federation.flwr("run", app, CONNECTION, *options, timeout_s=120.0)
    return {int(node): answer for node, answer in json.loads(out.read_text("utf-8")).items()}
