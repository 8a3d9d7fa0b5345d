"""How updates and weights travel between clients and server."""

from retexo_fl.updates.codec import PLAIN, PlainUpdates, UpdateCodec, UpdateKey
from retexo_fl.updates.grid import BITS, GridUpdates

__all__ = ["PLAIN", "GridUpdates", "PlainUpdates", "UpdateCodec", "UpdateKey", "update_codec"]


def update_codec(bits: int) -> UpdateCodec:
    """Return the codec of updates of so many bits a value; 32 leaves them as they are."""
    return GridUpdates(bits=bits) if bits in BITS else PLAIN
