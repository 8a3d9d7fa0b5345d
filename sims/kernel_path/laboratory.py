"""Where everything is measured: the wire, a process at each end, and the clocks between them."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Final, Self

from retexo_fl.errors import ChannelError
from sims.kernel_path.processes import Helper
from sims.kernel_path.processor_time import softirq_threads, thread_that_serves, used_s
from sims.kernel_path.receiving import ReceivingSide
from sims.kernel_path.sending import SendingSide, Sent
from sims.kernel_path.wire import Wire
from sims.kernel_path.workload import WAYS, Case, Opened

_MILLION: Final = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One measurement; times are processor seconds.

    Attributes:
        case: What was measured.
        process_s: Of the receiver's process.
        kernel_s: Of the kernel thread that takes the receiver's packets.
        sender_s: Of the senders' processes and the kernel thread that takes their answers.
        leftover_s: Of the threads that do what interrupts left undone, for whomever on this
            machine.
        opening_s: Of the receiver, for opening the exchanges; not in the others.
        wall_s: From the first send to the last addition, by the clock.
        wake_ups: Of the receiver's process.
        user_packets: Packets with vectors that came through a socket of the receiver.
        packets: Packets with vectors that were sent.
        repeated: Of these, repetitions.
        pace_s: Between two messages of a sender, if they were paced.
    """

    case: Case
    process_s: float
    kernel_s: float
    sender_s: float
    leftover_s: float
    opening_s: float
    wall_s: float
    wake_ups: int
    user_packets: int
    packets: int
    repeated: int
    pace_s: float

    @property
    def receiver(self) -> float:
        """The receiver's seconds for a million vectors."""
        return (self.process_s + self.kernel_s) / self.case.vectors * _MILLION

    @property
    def sender(self) -> float:
        """The senders' seconds for a million vectors."""
        return self.sender_s / self.case.vectors * _MILLION

    @property
    def total(self) -> float:
        """The seconds of both for a million vectors."""
        used_s = self.process_s + self.kernel_s + self.sender_s + self.leftover_s
        return used_s / self.case.vectors * _MILLION

    @property
    def exchange_s(self) -> float:
        """The seconds of both for one exchange, opening included."""
        used_s = self.process_s + self.kernel_s + self.sender_s + self.leftover_s
        return (used_s + self.opening_s) / self.case.exchanges

    @property
    def receiver_exchange_s(self) -> float:
        """The receiver's seconds for one exchange, opening included."""
        return (self.process_s + self.kernel_s + self.opening_s) / self.case.exchanges


class Laboratory:
    """For a ``with`` block; nothing is left of it.

    Args:
        most_senders: Processes that send at a time, at most.

    Raises:
        ConfigurationError: This machine cannot make it.
    """

    def __init__(self, *, most_senders: int) -> None:
        self._most_senders = most_senders
        self._stack = contextlib.ExitStack()
        self._super_frames: bool | None = None

    def __enter__(self) -> Self:
        """Lay the wire and start the processes."""
        with contextlib.ExitStack() as stack:
            self.wire = stack.enter_context(Wire())
            receiver, sender = self.wire.receiver, self.wire.sender
            self._receiver = stack.enter_context(Helper("spawn", ReceivingSide, receiver))
            self._senders = stack.enter_context(
                Helper("spawn", SendingSide, sender, self._most_senders)
            )
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        """Take everything away."""
        self._stack.close()

    def measure(self, case: Case) -> Sample:
        """Measure one case.

        Raises:
            ChannelError: Something did not arrive, or arrived wrong.
        """
        self._set_frames(WAYS[case.way].has_super_frames)
        opened: Opened = self._receiver.call("open", case)
        self._senders.call("prepare", case, opened)
        self._receiver.call("ready")
        clocks = _Clocks(self.wire)
        self._receiver.begin("receive")
        sent: list[Sent] = self._senders.call("send", case)
        process_s, ended_s, wake_ups = self._receiver.result()
        kernel_s, answers_s, leftover_s = clocks.used_s()
        self._senders.call("finish")
        user_packets, is_exact = self._receiver.call("finish")
        if not is_exact:
            raise ChannelError(f"{case}: the sums are wrong")
        return Sample(
            case=case,
            process_s=process_s,
            kernel_s=kernel_s,
            sender_s=sum(each.process_s for each in sent) + answers_s,
            leftover_s=leftover_s,
            opening_s=opened.opening_s,
            wall_s=ended_s - min(each.begun_s for each in sent),
            wake_ups=wake_ups,
            user_packets=user_packets,
            packets=sum(each.packets for each in sent),
            repeated=sum(each.repeated for each in sent),
            pace_s=max(each.pace_s for each in sent),
        )

    def _set_frames(self, super_frames: bool) -> None:
        if super_frames is not self._super_frames:
            self.wire.carry_super_frames(super_frames)
            self._super_frames = super_frames


class _Clocks:
    def __init__(self, wire: Wire) -> None:
        self._threads = [
            [thread_that_serves(wire.receiver.interface)],
            [thread_that_serves(wire.sender.interface)],
            softirq_threads(),
        ]
        self._before = self._read()

    def used_s(self) -> list[float]:
        """Return what the receiver's, the senders' and the shared kernel threads used since."""
        return [now - then for now, then in zip(self._read(), self._before, strict=True)]

    def _read(self) -> list[float]:
        return [sum(map(used_s, threads)) for threads in self._threads]
