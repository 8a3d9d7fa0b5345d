"""What an agent reports about itself over its socket: its part, its jobs, its peers, its memory."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from retexo_fl.agent.jobs import AgentJobs
from retexo_fl.graph.parts.partition import GraphPartition

if TYPE_CHECKING:
    from retexo_fl.agent.job import AgentJob


def process_memory() -> dict[str, int]:
    """Return this process's ``rss_bytes``, ``peak_rss_bytes`` and ``pss_bytes``; 0 if unknown."""
    found = _memory_lines(Path("/proc/self/status")) | _memory_lines(
        Path("/proc/self/smaps_rollup")
    )
    names = {"rss_bytes": "VmRSS", "peak_rss_bytes": "VmHWM", "pss_bytes": "Pss"}
    return {name: found.get(key, 0) for name, key in names.items()}


def agent_facts(partition: GraphPartition, jobs: AgentJobs, *, started_at: float) -> dict[str, Any]:
    """Return what is known without the network.

    Args:
        partition: The client's part.
        jobs: Its jobs.
        started_at: Unix time.
    """
    now = time.time()
    return {
        "pid": os.getpid(),
        "uptime_s": round(now - started_at, 3),
        "part": {
            "client": partition.client,
            "num_clients": partition.num_clients,
            "nodes": partition.num_inner,
            "boundary_nodes": partition.num_boundary,
            "peers": len(partition.peers),
            "partitioning": partition.partitioning,
        },
        "memory": process_memory(),
        "questions": {"answered": jobs.questions.count, "most": jobs.questions.most},
        "epsilon": jobs.epsilon,
        "row_epsilon": jobs.row_epsilon,
        "jobs": [_job_facts(job, now) for job in jobs.running],
    }


def peer_facts(
    jobs: AgentJobs, owed: Mapping[int, Any], network: Mapping[int, Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Return one entry for each peer.

    Args:
        jobs: The client's jobs.
        owed: By peer, what is not delivered to it yet: ``blocks`` and ``bytes``.
        network: By peer, how it is reached.
    """
    by_peer: dict[int, dict[str, Any]] = {}
    for client in sorted({*owed, *network}):
        debt = owed.get(client)
        by_peer[client] = {
            "client": client,
            **network.get(client, {}),
            "owed": {"blocks": debt.num_blocks, "bytes": debt.num_bytes} if debt else _NOTHING,
            "awaited": dict(_NOTHING),
            "layers": [],
        }
    for job in jobs.running:
        for client, (blocks, size_bytes) in job.awaited().items():
            entry = by_peer.setdefault(client, _unknown_peer(client))
            entry["awaited"]["blocks"] += blocks
            entry["awaited"]["bytes"] += size_bytes
        for facts in _layers(job):
            by_peer.setdefault(facts["peer"], _unknown_peer(facts["peer"]))["layers"].append(facts)
    return [by_peer[client] for client in sorted(by_peer)]


def without_bytes(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return facts without numbers of bytes: whoever reaches the socket reads them.

    That is code of the server's, too, and where sums are masked bytes reveal rows. Their owner has
    them in the state folder, by job.
    """
    peers = [{**_without_bytes(peer), "layers": []} for peer in facts["peers"]]
    return {**facts, "peers": peers, "deliveries": [], "datagrams": None, "flower": None}


def _without_bytes(facts: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: _without_bytes(value)
        if isinstance(value, Mapping)
        else (None if "bytes" in name else value)
        for name, value in facts.items()
    }


_NOTHING = {"blocks": 0, "bytes": 0}


def _unknown_peer(client: int) -> dict[str, Any]:
    return {
        "client": client,
        "owed": dict(_NOTHING),
        "awaited": dict(_NOTHING),
        "layers": [],
    }


def _job_facts(job: AgentJob, now: float) -> dict[str, Any]:
    return {
        "job": job.name,
        "attempt": job.attempt,
        **job.training,
        "stage": job.stage,
        "round": job.round,
        "message": job.message,
        "state": job.state,
        "last_message_s": round(now - job.asked_at, 3),
    }


def _layers(job: AgentJob) -> list[dict[str, Any]]:
    """Return what crossed to and from each peer, by layer."""
    found: dict[tuple[int, int, str], dict[str, Any]] = {}
    for account, volume in job.book.ledger.lines():
        key = (account.peer, account.layer, account.direction)
        entry = found.setdefault(
            key,
            {
                "job": job.name,
                "peer": account.peer,
                "layer": account.layer,
                "direction": account.direction,
                "payload_bytes": 0,
                "wire_bytes": 0,
            },
        )
        entry["payload_bytes"] += volume.payload
        entry["wire_bytes"] += volume.wire or 0
    return list(found.values())


def _memory_lines(path: Path) -> dict[str, int]:
    try:
        lines = path.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return {}
    words = [text.split() for text in lines if text.endswith(" kB")]
    return {item[0].removesuffix(":"): int(item[1]) * 1024 for item in words if len(item) == 3}
