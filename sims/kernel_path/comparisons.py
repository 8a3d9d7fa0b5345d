"""What the measurements say against each other: ratios within one turn, and where lines cross."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Final, Literal

from sims.kernel_path.laboratory import Sample
from sims.kernel_path.runs import Findings

Whose = Literal["receiver", "total"]
Figure = Callable[[Sample], float]

XDP: Final = "XDP native"
#: By width: how many times XDP's the receiver's processor time of user-space UDP was to be.
UDP_TARGETS: Final = {64: 5.0, 256: 4.0}
#: Processor seconds of one side.
OF: Final[dict[Whose, Figure]] = {
    "receiver": lambda sample: sample.receiver,
    "total": lambda sample: sample.total,
}
OF_EXCHANGE: Final[dict[Whose, Figure]] = {
    "receiver": lambda sample: sample.receiver_exchange_s,
    "total": lambda sample: sample.exchange_s,
}


def ratios(over: list[Sample], under: list[Sample], figure: Figure) -> list[float]:
    """Return by how much one way takes more than another, turn by turn."""
    return [figure(one) / figure(other) for one, other in zip(over, under, strict=True)]


def flat_out_ratios(
    found: Findings, way: str, width: int, whose: Whose, senders: int | None = None
) -> list[float]:
    """Return how many times XDP's a way takes, turn by turn, with all numbers of senders or one."""
    numbers = found.sizes.senders if senders is None else (senders,)
    return [
        ratio
        for number in numbers
        for ratio in ratios(
            found.flat_out[way, width, number], found.flat_out[XDP, width, number], OF[whose]
        )
    ]


def paced_ratios(found: Findings, way: str, width: int, whose: Whose) -> list[float]:
    """Return how many times XDP's a way takes for paced small messages, turn by turn."""
    return ratios(found.paced[way, width], found.paced[XDP, width], OF[whose])


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """From where on TCP takes less than XDP.

    Attributes:
        way: TCP's.
        senders: How many.
        whose: Processor time.
        ratios: TCP's over XDP's by bytes that one sender sends in one exchange; medians.
    """

    way: str
    senders: int
    whose: Whose
    ratios: dict[int, float]

    @property
    def from_bytes(self) -> int | None:
        """The least measured size from which on TCP takes less; None: not at the largest."""
        found = None
        for size in sorted(self.ratios, reverse=True):
            if self.ratios[size] > 1:
                break
            found = size
        return found

    @property
    def text(self) -> str:
        """The line in words."""
        listed = ", ".join(f"{size_text(size)} {ratio:.2f}" for size, ratio in self.ratios.items())
        named = f"{self.way}, {self.senders} senders, {self.whose}"
        sizes = sorted(self.ratios)
        if self.from_bytes is None:
            where = "XDP takes less at the largest size"
        elif self.from_bytes == sizes[0]:
            where = "TCP takes less at all sizes"
        else:
            where = f"TCP takes less from {size_text(self.from_bytes)} on"
        return f"{named}: {where} (TCP / XDP: {listed})"


def lines(found: Findings) -> list[Line]:
    """Return where TCP begins to win, for each number of senders, with both kinds of frames."""
    sizes = found.sizes
    return [
        Line(
            way=way,
            senders=senders,
            whose=whose,
            ratios={
                size: median(
                    ratios(
                        found.exchanges[way, senders, size],
                        found.exchanges[XDP, senders, size],
                        OF_EXCHANGE[whose],
                    )
                )
                for size in sizes.exchange_bytes
            },
        )
        for way in ("TCP", "TCP, super-frames")
        for senders in sizes.exchange_senders
        for whose in OF
    ]


def recommended_bytes(found: Findings) -> int | None:
    """Return from how many bytes of one sender on an agent should take them by TCP.

    By what both ends take, with frames as a network card has them: the least size at which TCP
    wins for some number of senders. None: it does not win.
    """
    won = [
        line.from_bytes
        for line in lines(found)
        if line.way == "TCP" and line.whose == "total" and line.from_bytes is not None
    ]
    return min(won, default=None)


def size_text(size: int) -> str:
    """Return bytes in units of 1,024."""
    return f"{size // 2**20} MiB" if size >= 2**20 else f"{size // 2**10} KiB"
