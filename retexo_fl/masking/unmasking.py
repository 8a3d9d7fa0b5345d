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
    chosen = sorted(told)[: label.threshold]
    assert len(chosen) == label.threshold
    joiner = _joiner(label, chosen)
    for at, (client, other) in enumerate(pairs):
        shares_of = {opener: shares[at] for opener, shares in by_opener.items()}
        try:
            seed = joiner.join([shares_of[opener] for opener in chosen])
        except RemoteProtocolError as error:
            raise RemoteProtocolError(
                f"{_liar(label, shares_of) or f'client {client}'}: {error}: of client {client}, as "
                f"clients {', '.join(map(str, sorted(told)))} told them"
            ) from error
        if client <= other:
            total.subtract_mask(seed)
        else:
            total.add_mask(seed)


def _joiner(label: Label, openers: Sequence[int]) -> Joiner:
    return Joiner([label.openers.index(opener) + 1 for opener in openers])


def _liar(label: Label, shares: Mapping[int, bytes]) -> str | None:
    """Name the opener without whom shares fit, if there are enough of others."""
    for liar in shares:
        others = sorted({*shares} - {liar})
        if len(others) < label.threshold:
            return None
        try:
            _joiner(label, others).join([shares[opener] for opener in others])
        except RemoteProtocolError:
            continue
        return f"client {liar}"
    return None
