"""What took the place of the features of nodes without any, and its cost."""

from __future__ import annotations

from dataclasses import dataclass

from retexo_fl.units import counted, format_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeColumns:
    """Columns that clients made of the edges.

    Attributes:
        columns: How many.
        degrees: How many degrees there are beside them.
        steps: By how many steps along edges they were made.
        bits: Of a value in vectors on their way.
        bytes_between_clients: Payload of these vectors.
        structure: ``columns``, or ``labels``, which say which train labels are near.
    """

    columns: int
    degrees: int
    steps: int
    bits: int
    bytes_between_clients: int
    structure: str = "columns"

    @property
    def sentence(self) -> str:
        """All of it in one line."""
        made, beside = counted(self.columns, "column"), counted(self.degrees, "degree")
        steps, moved = counted(self.steps, "step"), format_bytes(self.bytes_between_clients)
        begin = f"structure {self.structure}, since nodes have no features: {made}"
        if self.structure == "labels":
            return (
                f"{begin} of train labels within {steps} beside {beside}; peers were sent labels "
                f"of train nodes next to theirs, {moved} between clients"
            )
        bits = counted(self.bits, "bit")
        return f"{begin} beside {beside}, by {steps} along edges in {bits}, {moved} between clients"
