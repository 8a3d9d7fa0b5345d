"""What a client sends in place of its nodes' first rows: a noised class of each.

The noise follows from a secret of the client and from all that it sends: the same question about
the same nodes has the same answer, in whatever attempt, job and prediction. For other nodes, other
features or another server's classes the noise is independent. Each set of classes is a release,
which is noted before it leaves.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np

from retexo_fl.errors import LocalProtocolError
from retexo_fl.masking.keys import bound, derived
from retexo_fl.masking.streams import key_stream

if TYPE_CHECKING:
    from retexo_fl.training.row_classes import RowClasses

_STREAM: Final = b"retexo row noise 1"
_SECRET_BYTES: Final = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class RowRelease:
    """Noised classes of all nodes of a part that border peers.

    Attributes:
        job: Of the rows.
        epsilon: Of each node's features.
        identity: 16 hex digits, different for each set of classes.
    """

    job: str
    epsilon: float
    identity: str


class RowReleaseLog(Protocol):
    """Notes releases before they leave."""

    def enter(self, release: RowRelease) -> None:
        """Note a release; the same one again changes nothing.

        Raises:
            LocalProtocolError: It is one too many.
            CheckpointError: It could not be noted.
        """
        ...


class MemoryRowReleases:
    """A :class:`RowReleaseLog` of one client of one job, while its process lives."""

    def __init__(self) -> None:
        self._known = ""

    def enter(self, release: RowRelease) -> None:
        """See :class:`RowReleaseLog`."""
        check_single(self._known, release)
        self._known = release.identity


def check_single(known: str, release: RowRelease) -> None:
    """Refuse a second release in one job, of classes by another model: epsilon is for one release.

    Raises:
        LocalProtocolError: ``known`` is another release's identity.
    """
    if known not in {"", release.identity}:
        raise LocalProtocolError(
            f"row-dp: classes of rows left in job {release.job}; expected no others, since epsilon "
            "is for one release"
        )


class RowNoise:
    """Noises the first rows of one client of one job.

    Args:
        epsilon: Of the run's ``row-dp``.
        job: Name of the job.
    """

    def __init__(self, epsilon: float, job: str) -> None:
        self._epsilon, self._job = epsilon, job
        drawn = os.urandom(_SECRET_BYTES)
        self._secret: Callable[[], bytes] = lambda: drawn
        self._log: RowReleaseLog = MemoryRowReleases()

    def follow_from(self, secret: Callable[[], bytes], log: RowReleaseLog | None = None) -> None:
        """Draw from a secret that outlives the process, and note releases where it says.

        Args:
            secret: Returns 32 bytes of this client alone.
            log: Of its releases; None to keep them in memory.
        """
        self._secret = secret
        self._log = self._log if log is None else log

    def rows(
        self, classes: RowClasses, coordinates: np.ndarray, *, sent: np.ndarray, hashes: np.ndarray
    ) -> np.ndarray:
        """Return (n, d) rows that cross in place of coordinates: of nodes not sent, zeros.

        Args:
            classes: What the server made.
            coordinates: (n, d) of all inner nodes; rows are of their dtype.
            sent: (s,) nodes that any peer is sent, ascending; one or more.
            hashes: (n,) uint64 of their names.

        Raises:
            LocalProtocolError: As :meth:`RowReleaseLog.enter`; likewise ``CheckpointError``.
        """
        # As in noise.py: not before there are rows.
        from retexo_fl.training.row_classes import noised

        found, count = classes.of(coordinates[sent]), len(classes.bias)
        nodes = hashlib.sha256(hashes[sent].astype("<u8").tobytes())
        nodes.update(found.astype("<i4").tobytes())
        model = hashlib.sha256(classes.told().astype("<f8").tobytes()).digest()
        what = bound(_STREAM, struct.pack("<d", self._epsilon), model, nodes.digest())
        secret = self._secret()
        self._log.enter(
            RowRelease(
                job=self._job,
                epsilon=self._epsilon,
                identity=derived(secret, b"row release", what).hex()[:16],
            )
        )
        stream = key_stream(_STREAM, derived(secret, b"row noise", what))
        words = np.frombuffer(stream.update(bytes(8 * len(sent))), "<u8")
        told = np.zeros_like(coordinates)
        told[sent] = classes.rows[noised(found, self._epsilon, words, count=count)]
        return told
