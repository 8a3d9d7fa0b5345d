"""Parts of the recipe `kernel_path`: what needs neither root nor a second machine."""

from __future__ import annotations

import json
import socket
import threading
from pathlib import Path

import numpy as np
import pytest

from sims.kernel_path.comparisons import Line
from sims.kernel_path.laboratory import Sample
from sims.kernel_path.numpy_receiver import NumpyReceiver
from sims.kernel_path.runs import PACED_WAYS, QUICK, Findings, in_turn
from sims.kernel_path.tables import checks_of, target_checks
from sims.kernel_path.tcp_receiver import TcpReceiver
from sims.kernel_path.workload import WAYS, Case, places_of, values_of, wanted_sum
from sims.outcome import figures_of, rows_of
from sims.results_files import markdown
from tests.support.datagram_endpoints import (
    SHORT,
    UnreliableSocket,
    begin,
    complete,
    endpoint,
    expected_sum,
    grant,
    places,
    send,
    tables,
    vectors,
)

pytestmark = pytest.mark.slow
RESULTS = Path(__file__).resolve().parents[3] / "sims" / "results"


@pytest.mark.parametrize(
    ("ratios", "from_bytes"),
    [
        ({1024: 0.5, 4096: 0.9}, 1024),
        ({1024: 1.5, 4096: 0.9}, 4096),
        ({1024: 0.5, 4096: 1.5, 16384: 1.0}, 16384),
        ({1024: 0.5, 4096: 1.1}, None),
    ],
)
def test_tcp_wins_from_the_size_on_above_which_it_never_loses(
    ratios: dict[int, float], from_bytes: int | None
) -> None:
    line = Line(way="TCP", senders=2, whose="total", ratios=ratios)
    assert line.from_bytes == from_bytes


def sample_of(way: str, width: int, senders: int, process_s: float, user: int = 0) -> Sample:
    return Sample(
        case=Case(way=way, width=width, senders=senders, rows=100),
        process_s=process_s,
        kernel_s=0.0,
        sender_s=1.0,
        leftover_s=0.0,
        opening_s=0.0,
        wall_s=1.0,
        wake_ups=1,
        user_packets=user,
        packets=100,
        repeated=0,
        pace_s=0.0,
    )


def findings(*, udp_s: float = 2.0, tcp_s: float = 2.0, user: int = 0) -> Findings:
    """Return one second of XDP for each kind, and so much of the others."""

    def sample(way: str, width: int, senders: int) -> Sample:
        by_kernel = WAYS[way].kind == "xdp"
        seconds = 1.0 if by_kernel else tcp_s if WAYS[way].kind == "tcp" else udp_s
        return sample_of(way, width, senders, seconds, user if by_kernel else 9)

    found = Findings(sizes=QUICK)
    for width in QUICK.rows:
        for senders in QUICK.senders:
            for way in WAYS:
                found.flat_out[way, width, senders] = [sample(way, width, senders)]
    for width, _ in QUICK.paced:
        for way in PACED_WAYS:
            found.paced[way, width] = [sample(way, width, QUICK.paced_senders)]
    return found


@pytest.mark.parametrize(
    ("found", "failing", "quickly"),
    [
        (findings(udp_s=5.0), [], []),
        (findings(udp_s=4.5), ["width 64"], []),
        (findings(udp_s=5.0, user=1), ["XDP"], ["XDP"]),
        (
            findings(udp_s=0.9),
            ["flat out, every width and number of senders", "paced", "width 64", "width 256"],
            [],
        ),
        (findings(udp_s=5.0, tcp_s=0.9), ["paced"], []),
        (Findings(sizes=QUICK), None, ["XDP"]),
    ],
)
def test_lines_of_the_kernel_path_fail_on_what_contradicts_them(
    found: Findings, failing: list[str] | None, quickly: list[str]
) -> None:
    def fails(quick: bool) -> list[str]:
        checks = checks_of(found, quick=quick)
        return [check.line.split(":")[0].split(" small")[0] for check in checks if not check.holds]

    assert fails(quick=True) == quickly
    if failing is not None:
        assert fails(quick=False) == failing


def test_the_written_result_says_that_its_targets_were_missed() -> None:
    facts = json.loads((RESULTS / "kernel_path.json").read_text(encoding="utf-8"))
    targets = target_checks(figures_of(rows_of(facts["rows"])))
    assert [check.text.split(":")[0] for check in targets] == ["MISSED", "MISSED"]
    assert facts["checks"][-2:] == [check.facts() for check in targets]
    text = (RESULTS / "kernel_path.md").read_text(encoding="utf-8")
    assert text == markdown(facts)
    assert all(f"- {check.text}\n" in text for check in targets)


def test_kinds_are_measured_in_turn() -> None:
    assert in_turn(["a", "b"], 3) == ["a", "b", "b", "a", "a", "b"]


def test_receiver_by_arrays_adds_exactly_over_loss_and_repeats() -> None:
    values, where = vectors(900, 20), places(900, 50)
    bad = UnreliableSocket(loss=0.03, repeated=0.05, reordered=0.05, seed=2, joins_packets=False)
    receiver = NumpyReceiver(tables())
    with endpoint(bad, times=SHORT) as sender, endpoint(receiver=receiver) as taker:
        begin(taker, b"k", width=20, accumulators=50, streams=1)
        granted = grant(taker, b"k", where, width=20)
        send(sender, b"s", values, [(taker, granted)])
        complete(taker, b"k")
        assert np.array_equal(taker.rows(b"k", 0), expected_sum(50, [(values, where)], 20))
        assert taker.counters()["data_duplicate"] > 0


def test_receiver_by_tcp_adds_every_senders_exchanges_exactly() -> None:
    # Long enough that a message is added in parts.
    case = Case(way="TCP", width=33, senders=2, rows=5_000, exchanges=2, accumulators=70)
    receiver = TcpReceiver(case, "127.0.0.1")
    host, port = receiver.address.split(":")
    senders = []
    for number in range(case.senders):
        connection = socket.create_connection((host, int(port)), timeout=10)
        connection.sendall(number.to_bytes(4, "little"))
        senders.append(threading.Thread(target=_send, args=(connection, case, number)))
    receiver.accept()
    for sender in senders:
        sender.start()
    receiver.receive()
    receiver.close()
    for sender in senders:
        sender.join(10)
    assert np.array_equal(receiver.sums, wanted_sum(case) * np.int32(2))


def test_what_has_to_come_out_is_the_sum_of_what_is_sent() -> None:
    case = Case(way="TCP", width=3, senders=2, rows=40, accumulators=7)
    wanted = np.zeros((7, 3), np.int64)
    for sender in range(2):
        for place, value in zip(places_of(case, sender), values_of(case, sender), strict=True):
            wanted[place] += value
    assert np.array_equal(wanted_sum(case), wanted.astype(np.int32))


def _send(connection: socket.socket, case: Case, number: int) -> None:
    with connection:
        for _ in range(case.exchanges):
            connection.sendall(values_of(case, number).tobytes())
            connection.recv(1)
