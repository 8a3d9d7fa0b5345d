"""Checkpoints are written while clients compute: in a thread of their own, at intervals."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

from retexo_fl.federation.checkpoints import Checkpoint
from retexo_fl.federation.ledger_file import Piece

#: Finished rounds that a crash may cost, beside the one under way, in seconds of training.
MOST_LOST_S: Final = 1.0


class CheckpointWriter:
    """Writes states of a training, in order, one at a time.

    After a crash the training continues from a state that is at most :data:`MOST_LOST_S` older than
    its last finished round. Rounds that take longer than half of that are therefore all written,
    shorter ones at intervals. Where a write might end too late, the training waits for it.

    Args:
        write: Called in the thread; returns when the checkpoint is on the disk.
        now_s: A monotonic clock.
    """

    def __init__(
        self,
        write: Callable[[Checkpoint, Piece], None],
        *,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._write = write
        self._now_s = now_s
        self._thread: ThreadPoolExecutor | None = None
        self._under_way: Future[float] | None = None
        #: Times of the last state that was given to :meth:`write`, and of the last one on the disk.
        self._handed_s = self._safe_s = float("-inf")
        self._last_took_s = 0.0

    def is_due(self) -> bool:
        """Return whether a state that has just been reached should be written.

        Raises:
            CheckpointError: An earlier one could not be.
        """
        if self._under_way is not None and self._under_way.done():
            self.wait()
        if self._now_s() - self._handed_s < MOST_LOST_S / 2:
            return False
        return self._under_way is None or self._now_s() - self._safe_s >= MOST_LOST_S

    def write(self, checkpoint: Checkpoint, ledger: Piece) -> None:
        """Write a state in the thread; its arrays may change afterwards.

        Args:
            checkpoint: The state.
            ledger: What of the account has changed until then.

        Raises:
            CheckpointError: It, or an earlier one, could not be written.
        """
        self.wait()
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        kept = {name: item.copy() for name, item in checkpoint.tensors.items()}
        self._handed_s = self._now_s()
        self._under_way = self._thread.submit(
            self._timed, Checkpoint(facts=checkpoint.facts, tensors=kept), ledger
        )
        if self._handed_s - self._safe_s + self._last_took_s >= MOST_LOST_S:
            self.wait()

    def wait(self) -> None:
        """Return when everything given to :meth:`write` is on the disk.

        Raises:
            CheckpointError: It could not be written.
        """
        if self._under_way is None:
            return
        under_way, self._under_way = self._under_way, None
        self._last_took_s = under_way.result()
        self._safe_s = self._handed_s

    def close(self) -> None:
        """End the thread, after what it has under way; a failure is not raised any more."""
        if self._thread is not None:
            self._thread.shutdown()
            self._thread = self._under_way = None

    def _timed(self, checkpoint: Checkpoint, ledger: Piece) -> float:
        begun_s = self._now_s()
        self._write(checkpoint, ledger)
        return self._now_s() - begun_s
