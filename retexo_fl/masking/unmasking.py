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
    for opener, shares in told.items():
        if len(shares) != len(pairs) * SHARE_BYTES:
            raise RemoteProtocolError(
                f"client {opener}: told {len(shares)} bytes of shares; expected "
                f"{len(pairs) * SHARE_BYTES}"
            )
    chosen = sorted(told)[: label.threshold]
    assert len(chosen) == label.threshold
    joiner = Joiner([label.openers.index(opener) + 1 for opener in chosen])
    for at, (client, other) in enumerate(pairs):
        span = slice(at * SHARE_BYTES, (at + 1) * SHARE_BYTES)
        seed = joiner.join([told[opener][span] for opener in chosen])
        if client <= other:
            total.subtract_mask(seed)
        else:
            total.add_mask(seed)
