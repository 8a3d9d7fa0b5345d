"""The server's end: masks that do not cancel are taken off the sum, from openers' shares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from retexo_fl.errors import RemoteProtocolError
from retexo_fl.masking.holder import told_shares
from retexo_fl.masking.label import Label
from retexo_fl.masking.shamir import SHARE_BYTES, Joiner
from retexo_fl.masking.streams import Sums


def unmask(label: Label, total: Sums, included: Sequence[int], told: Mapping[int, bytes]) -> None:
    """Take the masks off a sum in place.

    Args:
        label: Of the sum.
        total: What the included clients sent, added up.
        included: Whose numbers are in it, ascending.
        told: By opener, what it told (:meth:`.MaskHolder.open`); the threshold of them at least.

    Raises:
        RemoteProtocolError: An opener told another number of shares, or they do not fit together.
    """
    pairs = told_shares(label, included)
    by_opener: dict[int, list[bytes]] = {}
    for opener, shares in told.items():
        if len(shares) != len(pairs) * SHARE_BYTES:
            raise RemoteProtocolError(
                f"client {opener}: told {len(shares)} bytes of shares; expected "
                f"{len(pairs) * SHARE_BYTES}"
            )
        by_opener[opener] = [
            shares[at : at + SHARE_BYTES] for at in range(0, len(shares), SHARE_BYTES)
        ]
    shares_by_pair = _Shares(label)
    added: list[bytes] = []
    subtracted: list[bytes] = []
    for at, (client, other) in enumerate(pairs):
        seed = shares_by_pair.seed(client, {o: shares[at] for o, shares in by_opener.items()})
        (subtracted if client <= other else added).append(seed)
    total.add_masks(added, subtracted)


class _Shares:
    """Joins shares of one sum's masks."""

    def __init__(self, label: Label) -> None:
        self._label = label
        self._joiners: dict[tuple[int, ...], Joiner] = {}

    def seed(self, client: int, shares: Mapping[int, bytes]) -> bytes:
        """Return the seed of a mask.

        Args:
            client: Who has sealed the shares.
            shares: By opener; the threshold of them at least.

        Raises:
            RemoteProtocolError: They do not fit together. With two more than are needed, the
                opener that told another one is named; else all who may have been it.
        """
        try:
            return self._joined(shares)
        except RemoteProtocolError as error:
            liar = self._liar(shares)
            whose = f"of client {client}'s masks"
            if liar is not None:
                raise RemoteProtocolError(
                    f"client {liar}: told a share {whose} that does not fit those of others"
                ) from error
            tellers = ", ".join(map(str, sorted(shares)))
            raise RemoteProtocolError(
                f"client {client}: {error}, as clients {tellers} told them: it sealed others, or "
                "one of these told another"
            ) from error

    def _joined(self, shares: Mapping[int, bytes]) -> bytes:
        """Join shares by two sets of openers, if there are more than are needed.

        A share that is little beside the right one gives a seed that may be one.
        """
        openers, least = sorted(shares), self._label.threshold
        assert len(openers) >= least
        first, last = openers[:least], openers[-least:]
        seed = self._join(first, shares)
        if last != first and self._join(last, shares) != seed:
            raise RemoteProtocolError("shares of a mask do not fit together")
        return seed

    def _join(self, openers: Sequence[int], shares: Mapping[int, bytes]) -> bytes:
        key = tuple(openers)
        if key not in self._joiners:
            places = [self._label.openers.index(opener) + 1 for opener in openers]
            self._joiners[key] = Joiner(places)
        return self._joiners[key].join([shares[opener] for opener in openers])

    def _liar(self, shares: Mapping[int, bytes]) -> int | None:
        """Return the opener without whom shares fit, if others are enough to tell."""
        if len(shares) < self._label.threshold + 2:
            return None
        for liar in sorted(shares):
            try:
                self._joined({o: share for o, share in shares.items() if o != liar})
            except RemoteProtocolError:
                continue
            return liar
        return None
