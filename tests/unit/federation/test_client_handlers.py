"""What many clients of one process are asked with one content is read once."""

from __future__ import annotations

from typing import Any

from flwr.app import Message

from retexo_fl.client.api import HelloRequest, Ticket, question_of
from retexo_fl.errors import LocalProtocolError
from retexo_fl.federation.client_handlers import build_client_app, in_simulation
from retexo_fl.federation.records import FAILURE, request_content
from retexo_fl.simulation.inline_grid import InlineGrid


class _Client:
    """Notes what it is asked; has no answer."""

    def __init__(self) -> None:
        self.asked: list[object] = []

    def ask(self, request: Any) -> Any:
        self.asked.append(request)
        raise LocalProtocolError("noted")


def test_a_content_is_read_once_and_another_anew() -> None:
    client = _Client()
    app = build_client_app(in_simulation(lambda job, index: client))
    grid = InlineGrid(app, 3, {})
    request = HelloRequest(ticket=Ticket(job="job-0123456789ab", attempt=1))
    shared, alike = request_content(request), request_content(request)
    for node, content in zip(grid.get_node_ids(), (shared, shared, alike), strict=True):
        kind = question_of(request).message_type
        message = Message(content, dst_node_id=node, message_type=kind, group_id="1.0.0")
        (reply,) = grid.pull_messages(grid.push_messages([message]))
        assert FAILURE in reply.content
    one, other, third = client.asked
    assert one is other
    assert third is not one
    assert third == one == request
