"""In a real training no process opens another client's files: the system's tracer watches.

Every client makes its part from its own tables with ``retexo partition local``, then lives in a
process of its own, and so does the server. What each process opened, read or wrote, is compared
with what it may know.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from retexo_fl.client.preparation import make_parts
from retexo_fl.config import RunConfig
from retexo_fl.graph import BoundaryPlan, GraphPartition
from retexo_fl.graph.parts.peers import peers_of
from retexo_fl.simulation.inline_engine import run_inline
from tests.support.commands import ROOT, environment
from tests.support.file_trace import FileAccess, opened, read_trace, tracer
from tests.support.process_federation import Federation, run_federation
from tests.support.runs import configured, model_bytes, result_of
from tests.support.tables import export_part

pytestmark = [pytest.mark.system]

CLIENTS: Final = 3
KEYS: Final = {
    **{"clients": CLIENTS, "partitioner": "louvain"},
    **{"rounds": 4, "hidden": 16, "learning_rate": 0.1},
}
#: A block in an inbox: layer, digest of weights, sender; while it is written, also a process.
_BLOCK: Final = re.compile(r"(\d+)-[0-9a-f]{16}-(\d+)\.frames(\.\d+\.part)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Traced:
    """A training, and the trace of each of its processes."""

    federation: Federation
    config: RunConfig
    parts: list[GraphPartition]

    def trace(self, name: str) -> list[FileAccess]:
        return read_trace(self.federation.root / f"{name}.trace", cwd=ROOT)


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Traced:
    """Make parts and train, all under the tracer."""
    federation = Federation(root=tmp_path_factory.mktemp("federation"), clients=CLIENTS)
    config = configured(federation.run, **KEYS)
    parts = make_parts(config)
    make_local_parts(federation, parts)
    run_federation(federation, config, under=lambda name: tracer(federation.root / f"{name}.trace"))
    return Traced(federation=federation, config=config, parts=parts)


def make_local_parts(federation: Federation, parts: Sequence[GraphPartition]) -> None:
    """Give each client its tables and the peers file, and have it make its part."""
    peers = peers_of(parts)
    for client, part in enumerate(parts):
        home = federation.home(client)
        files = export_part(part, home / "tables", "csv", clients=peers.clients)
        (home / "peers.toml").write_text(peers.to_toml())
        options = ["--peers", str(home / "peers.toml"), "--name", peers.clients[client]]
        command = [sys.executable, "-m", "retexo_fl", "partition", "local", *files.options()]
        under_tracer(
            federation.root / f"local-{client}.trace",
            [*command, *options, "--out", str(home / "parts")],
        )


def under_tracer(trace: Path, command: Sequence[str], cwd: Path = ROOT) -> None:
    done = subprocess.run(
        [*tracer(trace), *command],
        cwd=cwd,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stderr


# ---- what a process may open


def trespasses(federation: Federation, name: str, accesses: Sequence[FileAccess]) -> list[str]:
    """Return what a process did with files that are none of its business."""
    own = {found.pid for found in accesses}
    return [
        f"{found.call} {found.path}"
        for found in accesses
        if not _may_access(federation, name, found, own)
    ]


def _may_access(federation: Federation, name: str, found: FileAccess, own: set[int]) -> bool:
    parts = found.path.parts
    if parts[:2] == ("/", "proc") and len(parts) > 2 and parts[2].isdecimal():
        return int(parts[2]) in own
    if not found.path.is_relative_to(federation.root):
        # Programs, libraries, and what the system tells about itself.
        return True
    if found.path.is_relative_to(federation.spool):
        return name != "server" and _may_use_spool(federation, name, found)
    return found.path.is_relative_to(federation.root / name)


def _may_use_spool(federation: Federation, name: str, found: FileAccess) -> bool:
    """Say whether a client may: its inbox is its own, in others it leaves its own blocks."""
    client = name.removeprefix("client-")
    _, receiver, *block = found.path.relative_to(federation.spool).parts
    if receiver == client:
        return True
    match = _BLOCK.fullmatch("/".join(block))
    return match is not None and match[2] == client and found.writes


# ---- the training


def test_each_client_made_its_part_from_its_own_tables(traced: Traced) -> None:
    federation = traced.federation
    for client in range(CLIENTS):
        accesses = traced.trace(f"local-{client}")
        assert trespasses(federation, f"client-{client}", accesses) == []
        tables = set((federation.home(client) / "tables").iterdir())
        assert len(tables) == 3
        assert tables <= opened(accesses, writes=False)


def test_each_client_opened_its_own_files_only(traced: Traced) -> None:
    federation = traced.federation
    for client in range(CLIENTS):
        accesses = traced.trace(f"client-{client}")
        assert trespasses(federation, f"client-{client}", accesses) == []
        # It is not for want of tracing: the whole part, the store and both inboxes are there.
        part = set(federation.part(client).iterdir())
        assert len(part) == 13
        assert part <= opened(accesses, writes=False)
        assert not part & opened(accesses, writes=True)
        written = {path.parent.parent for path in opened(accesses, writes=True)}
        assert federation.home(client) / "store" in written


def test_blocks_went_from_each_client_to_its_peers(traced: Traced) -> None:
    expected = {
        (stage, part.client, peer.peer)
        for part in traced.parts
        for peer in BoundaryPlan.from_partition(part).peers
        for stage in range(traced.config.layers)
    }
    assert len(expected) == 2 * CLIENTS * (CLIENTS - 1)
    for writes in (True, False):
        assert _blocks(traced, writes=writes) == expected


def _blocks(traced: Traced, *, writes: bool) -> set[tuple[int, int, int]]:
    """Return (stage, sender, receiver) of all blocks that senders wrote, or receivers read."""
    blocks = set()
    for client in range(CLIENTS):
        for path in opened(traced.trace(f"client-{client}"), writes=writes):
            if path.suffix == ".frames":
                match = _BLOCK.fullmatch(path.name)
                assert match is not None
                stage, sender, receiver = int(match[1]), int(match[2]), int(path.parent.name)
                if client == (sender if writes else receiver):
                    blocks.add((stage, sender, receiver))
    return blocks


def test_the_server_opened_no_part_and_no_block(traced: Traced) -> None:
    accesses = traced.trace("server")
    assert trespasses(traced.federation, "server", accesses) == []
    assert traced.federation.run / "result.json" in {
        path.with_suffix("") if path.suffix == ".part" else path
        for path in opened(accesses, writes=True)
    }


def test_the_model_is_that_of_the_engine_in_one_process(traced: Traced, tmp_path: Path) -> None:
    run_inline(configured(tmp_path / "inline", **KEYS), traced.parts)
    assert model_bytes(traced.federation.run) == model_bytes(tmp_path / "inline")
    one, other = result_of(traced.federation.run), result_of(tmp_path / "inline")
    assert one["test_accuracy"] == other["test_accuracy"] > 0.5
    assert one["bytes"]["raw"] == other["bytes"]["raw"]


# ---- the watch itself

_MISDEEDS: Final = {
    "reads a part": "open(part / 'labels.npy').close()",
    "tries a part that is not there": "missing(lambda: open(part / 'none.npy'))",
    "lists a part": "os.scandir(part).close()",
    "reads by a relative path": "open('../client-1/parts/part-1/indptr.npy').close()",
    "reads through a link of its own": (
        "os.symlink(part / 'indices.npy', 'alias'); open('alias').close()"
    ),
    "takes a file over by a second name": "os.link(part / 'node_keys.npy', 'mine.npy')",
    "moves a file": "os.rename(root / 'client-1' / 'tables' / 'edges.csv', 'edges.csv')",
    "removes a file": "os.unlink(root / 'client-1' / 'peers.toml')",
    "reads what another client is sent": "open(inbox / '0-0123456789abcdef-2.frames').close()",
    "sends in another client's name": (
        "open(inbox / '0-0123456789abcdef-2.frames.1.part', 'w').close()"
    ),
    "reads its own block again": "open(inbox / '0-0123456789abcdef-0.frames').close()",
    "reads the run": "open(root / 'server' / 'run' / 'result.json').close()",
    "looks into another process": "open('/proc/1/status').close()",
    "has a program read": "os.system(f'cat {part}/val_mask.npy > /dev/null')",
    "reads in a thread": (
        "t = threading.Thread(target=lambda: open(part / 'test_mask.npy').close()); "
        "t.start(); t.join()"
    ),
}


@pytest.mark.parametrize("misdeed", _MISDEEDS)
def test_the_watch_notices(tmp_path: Path, misdeed: str) -> None:
    federation = Federation(root=tmp_path, clients=CLIENTS)
    inbox = federation.spool / "job" / "1"
    for folder in (federation.home(0), federation.part(1), federation.run, inbox):
        folder.mkdir(parents=True)
    (federation.home(1) / "tables").mkdir()
    for name in ("labels", "indptr", "indices", "node_keys", "val_mask", "test_mask"):
        (federation.part(1) / f"{name}.npy").touch()
    for path in (
        *(federation.home(1) / "tables" / "edges.csv", federation.home(1) / "peers.toml"),
        federation.run / "result.json",
        *(inbox / f"0-0123456789abcdef-{sender}.frames" for sender in (0, 2)),
    ):
        path.touch()
    script = (
        "import os, threading\n"
        "from pathlib import Path\n"
        f"root = Path({str(tmp_path)!r})\n"
        "part, inbox = root / 'client-1' / 'parts' / 'part-1', root / 'spool' / 'job' / '1'\n"
        "def missing(attempt):\n"
        "    try:\n"
        "        attempt()\n"
        "    except FileNotFoundError:\n"
        "        pass\n"
        # What it may do, so that not all is refused.
        "open('own.txt', 'w').close()\n"
        "open(inbox / '1-0123456789abcdef-0.frames.9.part', 'w').close()\n"
    )
    trace = tmp_path / "client-0.trace"
    for text, expected in ((script, 0), (script + _MISDEEDS[misdeed], 1)):
        under_tracer(trace, [sys.executable, "-c", text], cwd=federation.home(0))
        accesses = read_trace(trace, cwd=federation.home(0))
        assert federation.home(0) / "own.txt" in opened(accesses, writes=True)
        assert bool(trespasses(federation, "client-0", accesses)) == bool(expected)
