"""Clients that cannot reach each other and do not know each other: the server introduces them and
carries what they have for each other, in a real deployment.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from retexo_fl.channels import BlockKey, SpoolChannel
from retexo_fl.exchange.frames import HEADER_BYTES
from retexo_fl.graph import find_partitions, open_partition
from tests.support.commands import program, run_command
from tests.support.data import cora_dir
from tests.support.deployment import Deployment
from tests.support.hosts import Hosts
from tests.support.places import AGENT_PORT, SERVER, WAYS, host_names, own_nodes
from tests.support.runs import configured, ledger_of, model_bytes, train_over

#: Without Flower's programs a relay is tested by tests/integration/test_peering.py.
pytestmark = [
    pytest.mark.system,
    pytest.mark.deployed,
    pytest.mark.slow,
    pytest.mark.timeout(1500),
]

KEYS: dict[str, Any] = {"model": "sage", "layers": 1, "rounds": 1}
#: Bytes that are searched for: few, so that most lie within a page.
_SOUGHT_BYTES = 48
#: Of SQLite: a page, and what stands before a log and before each page in it.
_PAGE, _LOG_HEADER, _FRAME_HEADER = 4096, 32, 24


class KeptFrames(SpoolChannel):
    """Keeps the frames of every block: what must not be seen on the way."""

    frames: list[bytes]

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.frames = []

    def send_block(self, key: BlockKey, frames: Sequence[bytes]) -> int:
        """Keep and send."""
        self.frames += frames
        return super().send_block(key, frames)


@contextmanager
def captured(folder: Path) -> Iterator[set[bytes]]:
    """Collect the pages that the SuperLink writes down, until the end of the body."""
    pages: set[bytes] = set()
    over = threading.Event()

    def read() -> None:
        # Messages come and go; a page that was seen once is kept.
        known: dict[Path, tuple[int, int]] = {}
        while not over.wait(0.1):
            for path in folder.glob("superlink.db*"):
                with suppress(OSError):
                    found = path.stat()
                    mark = found.st_mtime_ns, found.st_size
                    if known.get(path) != mark:
                        known[path] = mark
                        pages.update(_pages(path.read_bytes()))

    thread = threading.Thread(target=read)
    thread.start()
    try:
        yield pages
    finally:
        over.set()
        thread.join()


def _pages(content: bytes) -> Iterator[bytes]:
    """Cut a database, or its log of changes, into pages."""
    is_log = content[:4] in {b"\x37\x7f\x06\x82", b"\x37\x7f\x06\x83"}
    first, step = (_LOG_HEADER + _FRAME_HEADER, _FRAME_HEADER + _PAGE) if is_log else (0, _PAGE)
    for at in range(first, len(content), step):
        yield content[at : at + _PAGE]


@pytest.mark.parametrize("way", WAYS)
def test_relay_between_clients_that_the_server_introduced(tmp_path: Path, way: str) -> None:
    parts = tmp_path / "parts"
    source = ("--dataset", "cora", "--data-dir", str(cora_dir()), "--partitioner", "louvain")
    run_command(
        [program("retexo"), "partition", "make", *source, "--clients", "2", "--out", str(parts)],
        cwd=tmp_path,
    )
    plain = KeptFrames(tmp_path / "spool")
    train_over(configured(tmp_path / "inline", **KEYS, partitions=parts, clients=2), plain)
    with Hosts(host_names(2)) as hosts:
        hosts.isolate("client-0", "client-1")
        deployment = Deployment(hosts, tmp_path, parts, 2, own_nodes=own_nodes(way, 2))
        deployment.agent_settings = {
            "roster": "",
            "introductions": True,
        }
        deployment.start_superlink()
        deployment.make_identities()
        for client in range(2):
            address = f"tcp://{hosts[f'client-{client}'].address}:{AGENT_PORT}"
            deployment.register(client)
            deployment.start_agent(client, addresses=[address, "relay:"])
            if way == "SuperNodes":
                deployment.start_supernode(client)
        deployment.wait_for_supernodes()
        with captured(deployment.home(SERVER)) as pages:
            options = ("--profile", "retexo", "--model", "sage", "--layers", "1", "--rounds", "1")
            peering = ("--introductions", "true", "--relay", "true")
            deployment.run(tmp_path / "run", *options, *peering, timeout_s=1300.0)
        peers = [deployment.agent_status(client)["peers"][0] for client in range(2)]
    assert model_bytes(tmp_path / "run") == model_bytes(tmp_path / "inline")
    assert ledger_of(tmp_path / "run").sum(purpose="relay").payload > sum(map(len, plain.frames))
    assert all(peer["channels"]["relay"]["wire_bytes_received"] > 0 for peer in peers)
    seen = b"".join(pages)
    # What passes the server in the clear is found there; rows are not.
    assert sum(piece in seen for piece in _weights(tmp_path / "run")) > 5
    assert not any(piece in seen for piece in _secrets(parts, plain.frames))


def _weights(run: Path) -> list[bytes]:
    """Return pieces of the weights that the server sent last."""
    tensors = load_file(run / "model" / "layer-0.safetensors")
    content = max((tensor.tobytes() for tensor in tensors.values()), key=len)
    return _pieces(content, 512)


def _secrets(parts: Path, frames: Sequence[bytes]) -> list[bytes]:
    """Return pieces of rows as they are, and of frames as the codec writes them."""
    pieces = []
    for path in find_partitions(parts):
        features = open_partition(path).features
        rows = features if isinstance(features, np.ndarray) else features[:100].toarray()
        pieces += [_words(row) for row in rows[:200]]
    coded = [frame[HEADER_BYTES:] for frame in frames if len(frame) > 4096]
    assert len(coded) == 2
    pieces += [piece for frame in coded for piece in _pieces(frame, 256)]
    return [piece for piece in pieces if piece]


def _words(row: np.ndarray) -> bytes:
    """Return a row from its first word to its fourth, which no weights look like; or nothing."""
    places = np.flatnonzero(row)[:4]
    piece = row[places[0] : places[-1] + 1]
    is_telling = len(places) == 4 and 8 < len(piece) < _PAGE // 8
    return piece.tobytes() if is_telling else b""


def _pieces(content: bytes, step: int) -> list[bytes]:
    """Return short pieces of a text, every so many bytes."""
    ends = len(content) - _SOUGHT_BYTES
    return [content[at : at + _SOUGHT_BYTES] for at in range(0, ends, step)]
