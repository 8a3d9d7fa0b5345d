"""Blocks on disk, on their way to peers and from them."""

from retexo_fl.channels.depot.block_depot import BlockDepot

__all__ = ["BlockDepot"]
