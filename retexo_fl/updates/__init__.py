"""How updates and weights travel between clients and server."""

from retexo_fl.updates.codec import PLAIN, PlainUpdates, UpdateCodec, UpdateKey

__all__ = ["PLAIN", "PlainUpdates", "UpdateCodec", "UpdateKey"]
