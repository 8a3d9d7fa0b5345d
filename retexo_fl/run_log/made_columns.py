"""What stood for the features of nodes without any, and what it took."""

from __future__ import annotations

from dataclasses import dataclass

from retexo_fl.units import counted, format_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeColumns:
    """Columns that clients made of the edges.

    Attributes:
        columns: How many.
        degrees: How many degrees stand beside them.
        steps: By how many steps along edges they were made.
        bits: Of a value in vectors on their way.
        bytes_between_clients: Payload of these vectors.
    """

    columns: int
    degrees: int
    steps: int
    bits: int
    bytes_between_clients: int

    @property
    def sentence(self) -> str:
        """All of it in one line."""
        return (
            f"structure columns, since nodes have no features: {counted(self.columns, 'column')} "
            f"beside {counted(self.degrees, 'degree')}, by {counted(self.steps, 'step')} along "
            f"edges in {counted(self.bits, 'bit')}, {format_bytes(self.bytes_between_clients)} "
            "between clients"
        )
