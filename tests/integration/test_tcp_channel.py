"""Depots with their networks satisfy what every channel must, over TLS and TCP."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.depots import DepotsContract
from tests.support.peer_networks import World

_CLIENTS = 13


class TestTcpChannel(DepotsContract):
    @pytest.fixture(autouse=True)
    def _networks(self, tmp_path: Path) -> Iterator[None]:
        world = World.of(tmp_path, _CLIENTS)
        with self.exchanging({client: world.client(client) for client in range(_CLIENTS)}):
            yield
