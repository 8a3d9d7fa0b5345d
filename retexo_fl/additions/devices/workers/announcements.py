"""What the host has announced to one worker and not yet asked for."""

from __future__ import annotations

from collections.abc import Sequence

from retexo_fl.additions.devices.workers.task import Share


class Announcements:
    """The announced shares of one worker, in order; empty ones are left out."""

    def __init__(self) -> None:
        self._shares: list[Share] = []

    def replace(self, shares: Sequence[Share]) -> tuple[int, tuple[Share, ...]]:
        """Announce anew.

        Returns:
            How many of the shares announced before remain, all at the beginning, so that nothing is
            prepared twice; and the shares after these.
        """
        coming = [share for share in shares if len(share.items)]
        keep = 0
        for before, now in zip(self._shares, coming, strict=False):
            if not before.same_as(now):
                break
            keep += 1
        self._shares = coming
        return keep, tuple(coming[keep:])

    def order(self, share: Share) -> Share | int:
        """Return the order that has a worker compute ``share``: see ``messages.Step``."""
        for place, announced in enumerate(self._shares):
            if announced.same_as(share):
                del self._shares[: place + 1]
                return place
        return share
