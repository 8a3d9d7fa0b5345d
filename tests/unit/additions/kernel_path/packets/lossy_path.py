"""A path that loses, doubles and reorders what a window sends, with its own clock, for tests."""

from __future__ import annotations

import heapq
import math
import random
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from retexo_fl.additions.kernel_path.packets.window import SendWindow, ack_flags


class _Arrival(NamedTuple):
    at_s: float
    number: int
    seq: int
    wants_ack: bool
    bits: NDArray[np.uint64] | None
    is_ping: bool = False


@dataclass
class LossyPath:
    """Sends a stream to a receiver that acknowledges as told.

    Attributes:
        loss: Share of packets and answers that is lost.
        doubled: Share of packets that arrives twice.
        delay_s: One way.
        jitter_s: Added to it at random, each packet for itself.
        is_shuffled: Whether the packets of a batch arrive in any order.
        silent: Nothing arrives between these two times.
        delivered: How often each packet has arrived.
        lost: Packets and answers that were lost.
    """

    num_packets: int
    seed: int = 0
    loss: float = 0.0
    doubled: float = 0.0
    delay_s: float = 0.0003
    jitter_s: float = 0.0
    is_shuffled: bool = False
    silent: tuple[float, float] = (math.inf, math.inf)
    limit: int = 64
    lost: int = 0
    pings: int = 0
    acked: int = 0
    now_s: float = 100.0
    delivered: NDArray[np.int64] = field(init=False)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._arrivals: list[_Arrival] = []
        self._number = 0
        self.delivered = np.zeros(self.num_packets, dtype=np.int64)
        self.window = SendWindow(self.num_packets, now_s=self.now_s)

    def run(self, *, until_s: float = math.inf, most_steps: int = 200_000) -> None:
        """Send until all is acknowledged or the clock stands at ``until_s``."""
        for _ in range(most_steps):
            if self.window.done or self.now_s >= until_s:
                return
            self._send()
            self._wait(until_s)
        raise AssertionError(f"not done after {most_steps} steps: {self.window.acknowledged}")

    def _send(self) -> None:
        window = self.window
        low = window.ping_seq
        seqs = window.to_send(self.now_s, self.limit)
        assert len(seqs) <= self.limit
        assert window.on_their_way <= 256
        if len(seqs):
            assert low <= seqs.min() <= seqs.max() < min(self.num_packets, low + 256)
            assert len(np.unique(seqs)) == len(seqs)
        batch = list(zip(seqs.tolist(), ack_flags(seqs).tolist(), strict=True))
        if self.is_shuffled:
            self._random.shuffle(batch)
        for seq, wants_ack in batch:
            for _ in range(1 + (self._random.random() < self.doubled)):
                self._carry(seq, wants_ack=bool(wants_ack))
        if window.wants_ping(self.now_s):
            window.pinged(self.now_s)
            self.pings += 1
            self._carry(window.ping_seq, wants_ack=True, is_ping=True)

    def _wait(self, until_s: float) -> None:
        due_s = self.window.next_deadline_s()
        if due_s == -math.inf:
            due_s = self.now_s + 2e-5
        if self._arrivals:
            due_s = min(due_s, self._arrivals[0].at_s)
        assert due_s < math.inf, "nothing is on its way and nothing is due"
        self.now_s = min(max(due_s, self.now_s), until_s)
        while self._arrivals and self._arrivals[0].at_s <= self.now_s:
            self._arrive(heapq.heappop(self._arrivals))

    def _arrive(self, arrival: _Arrival) -> None:
        if arrival.bits is not None:
            base = arrival.seq // 512 * 512
            self.acked += self.window.acked(base, arrival.bits, self.now_s)
            return
        if not arrival.is_ping:
            self.delivered[arrival.seq] += 1
        if arrival.wants_ack:
            base = arrival.seq // 512 * 512
            bits = np.zeros(512, dtype=np.bool_)
            told = self.delivered[base : base + 512] > 0
            bits[: len(told)] = told
            packed = np.packbits(bits, bitorder="little").view(np.uint64)
            self._carry(arrival.seq, bits=packed)

    def _carry(
        self,
        seq: int,
        *,
        wants_ack: bool = False,
        bits: NDArray[np.uint64] | None = None,
        is_ping: bool = False,
    ) -> None:
        is_silent = self.silent[0] <= self.now_s < self.silent[1]
        if is_silent or self._random.random() < self.loss:
            self.lost += 1
            return
        self._number += 1
        at_s = self.now_s + self.delay_s + self._random.random() * self.jitter_s
        heapq.heappush(self._arrivals, _Arrival(at_s, self._number, seq, wants_ack, bits, is_ping))
