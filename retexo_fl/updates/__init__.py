"""How updates and weights travel between clients and server."""

from retexo_fl.updates.codec import PLAIN, PlainUpdates, UpdateCodec, UpdateKey
from retexo_fl.updates.few_bits import FewBits, most_held, weights_name

__all__ = [
    "PLAIN",
    "FewBits",
    "PlainUpdates",
    "UpdateCodec",
    "UpdateKey",
    "most_held",
    "update_codec",
    "weights_name",
]


def update_codec(*, update_bits: int, weight_bits: int) -> UpdateCodec:
    """Return the codec of updates and weights of so many bits a value; 32 changes nothing."""
    if update_bits == weight_bits == 32:
        return PLAIN
    return FewBits(update_bits=update_bits, weight_bits=weight_bits)
