"""What a client's owner promises of its part before sums are masked, and whether it still holds."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final

from retexo_fl.agent.limits import Limits
from retexo_fl.config import RunConfig
from retexo_fl.errors import AgreementError, ConfigurationError, PartitionError
from retexo_fl.graph.parts.manifest import MANIFEST_NAME
from retexo_fl.graph.parts.partition import GraphPartition
from retexo_fl.graph.parts.storage import open_partition

#: Of a client that has no part yet, and takes part in a feature recipe alone.
NO_PART: Final = hashlib.sha256(b"retexo no part yet").digest()
_WHOLE_TABLE: Final = frozenset({"nodes"})
#: Of a split by which every edge has a use.
_ALL_COUNT: Final = "random:0.8/0.1/0.1"


def part_digest(folder: Path) -> bytes:
    """Return 32 bytes that name a stored part: its manifest has the checksum of every array.

    Where there is no folder they are :data:`NO_PART`.

    Raises:
        PartitionError: It cannot be read.
    """
    if not folder.exists():
        return NO_PART
    path = folder / MANIFEST_NAME
    try:
        return hashlib.sha256(path.read_bytes()).digest()
    except OSError as error:
        raise PartitionError(f"{path}: cannot be read ({error.strerror})") from error


def check_promise(brings: frozenset[str], config: RunConfig, part: GraphPartition) -> None:
    """Check that a client brings to a training what its owner promised.

    Raises:
        ConfigurationError: The run's split leaves none of a use.
    """
    from retexo_fl.training.link_split import counts_by_use

    counts = counts_by_use(config, part)
    if lacking := [use for use, count in counts.items() if use in brings and not count]:
        raise ConfigurationError(
            f"client {part.client}: split: {config.split_name!r} with seed {config.seed} leaves no "
            f"{lacking[0]} edges or nodes of this client, of which its owner promised some; "
            "expected larger shares, or a promise without them (retexo keys member)"
        )


def brought_by(
    folder: Path, client: int, limits: Limits, *, links: bool, relation: str = ""
) -> tuple[frozenset[str], bytes]:
    """Return what the owner of a stored part promises: its uses, and its digest.

    Args:
        folder: Of the part.
        client: Whose it has to be.
        limits: As of :func:`uses_of_part`.
        links: Likewise.
        relation: Likewise.

    Raises:
        PartitionError: It cannot be read.
        AgreementError: It is another client's.
        ConfigurationError: As :func:`.relation_named`.
    """
    part = open_partition(folder)
    if part.client != client:
        raise AgreementError(
            f"{folder}: is the part of client {part.client}; expected that of client {client}"
        )
    return uses_of_part(part, limits, links=links, relation=relation), part_digest(folder)


def uses_of_part(
    part: GraphPartition, limits: Limits, *, links: bool, relation: str = ""
) -> frozenset[str]:
    """Return of which uses a part has enough for a sum that hides it.

    Args:
        part: The client's.
        limits: Have the fewest train nodes.
        links: What is learned is edges, which a run splits: a part with enough of them has some of
            each use.
        relation: Of a graph with types, whose edges are learned.

    Raises:
        ConfigurationError: As :func:`.relation_named`.
    """
    if links:
        # PyTorch comes with it, which an agent that waits for its first job does without.
        from retexo_fl.training.link_split import LinkSplit
        from retexo_fl.training.model_checks import relation_named

        predicted = relation_named(relation, part.relations)
        pairs = LinkSplit.of(part, split=_ALL_COUNT, seed=0, predicted=predicted).pairs
        edges = sum(map(len, pairs.values()))
        counts = dict.fromkeys(("train", "validation", "test"), edges // limits.least_train_nodes)
    else:
        counts = {
            "train": int(part.train_mask.sum()) // limits.least_train_nodes,
            "validation": int(part.val_mask.sum()),
            "test": int(part.test_mask.sum()),
        }
    return _WHOLE_TABLE.union(use for use, count in counts.items() if count)
