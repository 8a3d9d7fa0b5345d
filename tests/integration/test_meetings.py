"""Clients that are near each other now and then: nobody sleeps, days pass in virtual time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from retexo_fl.channels.accounts import PeerReport
from retexo_fl.channels.depot import BlockDepot
from retexo_fl.channels.limits import LinkLimits
from retexo_fl.client.preparation import make_parts
from retexo_fl.config import make_config
from retexo_fl.errors import ExchangeIncomplete
from retexo_fl.federation.server_app import run_training
from retexo_fl.graph import BoundaryPlan, GraphPartition
from retexo_fl.run_log.events import Event, Waiting
from tests.support.contacts import Contact, Country, contact, random_contacts
from tests.support.meeting_clients import (
    EPOCH_S,
    MeetingClient,
    MeetingFederation,
    limits_that_look_every,
    make_identities,
    meeting,
    meeting_client,
)
from tests.support.peer_networks import JOB, Plan, frames_of, header_of
from tests.support.runs import configured, events_of, ledger_of, model_bytes, result_of, train
from tests.support.virtual_loop import VirtualLoop

CLIENTS = 8
DAY_S = 86_400.0
HOUR_S = 3600.0
CUT: dict[str, Any] = {"clients": CLIENTS, "partitioner": "louvain", "rounds": 2, "hidden": 8}
#: Contacts that are as long as two looks at most, and often too short for one.
SHORT: dict[str, Any] = {"every_s": 30.0, "length_s": (180.0, 480.0)}
LOOKS = limits_that_look_every(240.0)
RARELY = limits_that_look_every(900.0)


@pytest.fixture(scope="module")
def parts() -> list[GraphPartition]:
    return make_parts(make_config({k.replace("_", "-"): v for k, v in CUT.items()}))


def _deployed(out: Path, **keys: Any) -> Any:
    return configured(out, engine="deployment", **{"exchange_poll_s": HOUR_S, **keys})


@pytest.mark.system
def test_clients_meeting_by_chance_complete_all_exchanges(
    tmp_path: Path, parts: list[GraphPartition]
) -> None:
    contacts = random_contacts(range(CLIENTS), seed=1, until_s=4 * DAY_S, **SHORT)
    # A block takes some ten seconds: contacts often end within one.
    country = Country(contacts, bytes_per_s=500.0)
    config = _deployed(tmp_path / "run", **CUT, exchange_deadline_s=4 * DAY_S)
    federation = MeetingFederation(tmp_path / "clients", parts, country, limits=LOOKS)
    with federation.meeting():
        run_training(federation.grid(config), config, clock=federation.loop)
        reports = [client.network.report() for client in federation.clients]
    assert federation.loop.now_s() > HOUR_S
    train(tmp_path / "inline", **CUT)
    assert model_bytes(tmp_path / "run") == model_bytes(tmp_path / "inline")
    assert result_of(tmp_path / "run")["missing_rows"] == 0
    moved = [ledger_of(tmp_path / name).sum(kind="boundary").raw for name in ("run", "inline")]
    assert moved[0] == moved[1] > 0
    assert not any(peer.refusals for report in reports for peer in report.peers.values())


@pytest.mark.slow
def test_missing_rows_are_those_of_clients_that_meet_nobody(
    tmp_path: Path, parts: list[GraphPartition]
) -> None:
    lonely = {3, 7}
    contacts = random_contacts({*range(CLIENTS)} - lonely, seed=2, until_s=DAY_S, **SHORT)
    country = Country(contacts)
    keys = {**CUT, "layers": 1, "missing_peers": "drop", "exchange_deadline_s": 18 * HOUR_S}
    config = _deployed(tmp_path / "run", **keys)
    federation = MeetingFederation(tmp_path / "clients", parts, country, limits=LOOKS)
    with federation.meeting():
        run_training(federation.grid(config), config, clock=federation.loop)
        took_s = federation.loop.now_s()
    assert 18 * HOUR_S <= took_s < 18 * HOUR_S + 1.0
    assert result_of(tmp_path / "run")["missing_rows"] == _rows_across(parts, lonely)
    assert np.isfinite(result_of(tmp_path / "run")["test_accuracy"])
    told = [event for event in events_of(tmp_path / "run") if event["event"] == "waiting"][-1]
    assert sum(told["lacks"]) == _rows_across(parts, lonely)


def _rows_across(parts: Sequence[GraphPartition], lonely: set[int]) -> int:
    """Return how many vectors go from or to a client that meets nobody."""
    plans = [BoundaryPlan.from_partition(part) for part in parts]
    return sum(
        peer.receive.count
        for plan in plans
        for peer in plan.peers
        if {plan.client, peer.peer} & lonely
    )


# ---- a wait that is broken off ---------------------------------------------------------------

FEW: dict[str, Any] = {"clients": 3, "rounds": 2, "hidden": 8}


class _Interrupter:
    """Presses Ctrl-C when it is told of an open exchange."""

    def __call__(self, event: Event) -> None:
        if isinstance(event, Waiting):
            raise KeyboardInterrupt


def test_wait_for_days_is_gone_on_with_after_interruptions(tmp_path: Path) -> None:
    everybody_at_last = [
        contact(one, other, 5 * DAY_S, 5 * DAY_S + HOUR_S)
        for one, other in ((0, 1), (1, 2), (0, 2))
    ]
    country = Country([contact(0, 1, 10.0, HOUR_S), *everybody_at_last])
    parts = make_parts(configured(tmp_path, **FEW))
    federation = MeetingFederation(tmp_path / "clients", parts, country, limits=RARELY)
    run = tmp_path / "run"
    keys = {**FEW, "exchange_deadline_s": 6 * DAY_S, "layers": 1}
    with federation.meeting():
        for resume in ("", run, run):
            config = _deployed(run, **keys, resume=resume)
            with pytest.raises(KeyboardInterrupt):
                run_training(
                    federation.grid(config), config, [_Interrupter()], clock=federation.loop
                )
            federation.loop.pause(DAY_S)
        config = _deployed(run, **keys, resume=run)
        run_training(federation.grid(config), config, clock=federation.loop)
    assert federation.loop.now_s() > 5 * DAY_S
    assert result_of(run)["attempts"] == 4
    assert [e["event"] for e in events_of(run)].count("exchange") == 1
    assert model_bytes(run) == model_bytes(train(tmp_path / "inline", **FEW, layers=1))
    # Nobody sent anything twice because of it.
    peers = [peer for c in federation.clients for peer in c.network.report().peers.values()]
    assert sum(peer.channels["bluetooth"].blocks_sent for peer in peers) == 6


def test_run_that_waited_in_vain_goes_on_with_another_policy(tmp_path: Path) -> None:
    country = Country([contact(0, 1, 10.0, HOUR_S)])
    parts = make_parts(configured(tmp_path, **FEW))
    federation = MeetingFederation(tmp_path / "clients", parts, country, limits=RARELY)
    run = tmp_path / "run"
    keys = {**FEW, "layers": 1, "exchange_deadline_s": 2 * DAY_S}
    with federation.meeting():
        config = _deployed(run, **keys)
        with pytest.raises(ExchangeIncomplete, match=r"after 172800 s .*client 2 lacks"):
            run_training(federation.grid(config), config, clock=federation.loop)
        config = _deployed(
            run, **{**keys, "exchange_deadline_s": 60.0}, missing_peers="drop", resume=run
        )
        run_training(federation.grid(config), config, clock=federation.loop)
    assert result_of(run)["missing_rows"] == _rows_across(parts, {2})


# ---- two that meet ---------------------------------------------------------------------------


class _Two:
    """Clients 0 and 1, and a third that nobody wants anything of; client 0 may look rarely."""

    def __init__(
        self,
        root: Path,
        contacts: Sequence[Contact],
        *,
        bytes_per_s: float = 1e5,
        page_s: float = 0.0,
        looks_every_s: float | None = None,
    ) -> None:
        self.loop = VirtualLoop()
        self.country = Country(contacts, bytes_per_s=bytes_per_s, page_s=page_s)
        identities = make_identities(root / "keys", 3)
        self.clients = []
        for number in range(3):
            depot = BlockDepot(root / f"depot-{number}", number)
            depot.admit_job(JOB, Plan(rows=64))
            limits = LinkLimits(look_every_s=None if number else looks_every_s)
            self.clients.append(
                meeting_client(self.loop, self.country, depot, identities, limits=limits)
            )

    def send(self, sender: int, receiver: int, *, layer: int = 0) -> tuple[bytes, ...]:
        header = header_of(sender, receiver, layer=layer, rows=64)
        frames = frames_of(header, frame_bytes=512)
        self.clients[sender].depot.send_block(header.key, frames)
        return frames

    def has(
        self, client: MeetingClient, sender: int, frames: Sequence[bytes], layer: int = 0
    ) -> bool:
        key = header_of(sender, client.depot.client, layer=layer, rows=64).key
        return client.depot.receive_block(key) == b"".join(frames)

    def peer(self, client: int, peer: int) -> PeerReport:
        return self.clients[client].network.report().peers[peer]


def test_block_that_was_cut_goes_on_at_the_first_missing_frame(tmp_path: Path) -> None:
    # 65 frames of half a kilobyte: 20 kB, of which a contact carries a part.
    contacts = [contact(0, 1, start, start + 25.0) for start in range(100, 2000, 100)]
    two = _Two(tmp_path, contacts, bytes_per_s=500.0)
    frames = two.send(0, 1)
    with meeting(two.loop, two.clients):
        while two.clients[0].depot.owed():
            two.loop.pause(10.0)
            assert two.loop.now_s() < 2000.0
        sent, got = two.peer(0, 1).channels["bluetooth"], two.peer(1, 0).channels["bluetooth"]
        assert two.has(two.clients[1], 0, frames)
    total = sum(map(len, frames))
    assert sent.links == got.links >= 3
    assert got.frame_bytes_received == total
    torn = sent.frame_bytes_sent - total
    assert 0 < torn <= (sent.links - 1) * max(map(len, frames))


def test_only_who_is_away_is_looked_for_and_at_the_interval(tmp_path: Path) -> None:
    two = _Two(tmp_path, [])
    two.send(0, 1)
    with meeting(two.loop, two.clients):
        two.loop.pause(6 * HOUR_S)
        looks = two.country.looks_in_vain(range(3))
        assert looks.keys() == {(0, 1)}
        # Half a minute on Bluetooth, a little less so that not all look at the same time.
        gaps = np.diff(looks[0, 1])
        assert len(gaps[gaps < 0.75 * 30.0]) <= 6
        assert gaps.max() <= 30.0
        assert 720 <= len(gaps) <= 960 + 6
        found = two.peer(0, 1)
        assert found.last_met_unix_s is None
        assert found.next_look_s is not None
        assert found.next_look_s <= 30.0
        assert two.peer(0, 2).next_look_s is None


def test_radio_looks_for_one_peer_at_a_time(tmp_path: Path) -> None:
    two = _Two(tmp_path, [contact(0, 1, HOUR_S, HOUR_S + 60.0)], page_s=5.0)
    frames = two.send(0, 1)
    two.send(0, 2)
    with meeting(two.loop, two.clients):
        two.loop.pause(HOUR_S)
        looks = [look.at_s for look in two.country.looks if look.client == 0]
        assert np.diff(looks).min() >= 5.0
        assert len(looks) >= 2 * 120
        two.loop.pause(60.0)
        assert two.has(two.clients[1], 0, frames)


def test_what_is_newly_owed_makes_a_client_look_at_once(tmp_path: Path) -> None:
    two = _Two(tmp_path, [])
    two.send(0, 1)
    with meeting(two.loop, two.clients):
        two.loop.pause(HOUR_S)
        (last_s,) = (looks[-1] for looks in two.country.looks_in_vain({0}).values())
        assert last_s < two.loop.now_s()
        two.send(0, 1, layer=1)
        two.loop.pause(0.01)
        assert two.country.looks_in_vain({0})[0, 1][-1] == two.loop.now_s() - 0.01


def test_peer_that_comes_by_itself_gets_what_it_is_owed(tmp_path: Path) -> None:
    near = contact(0, 1, 10 * HOUR_S, 10 * HOUR_S + 20.0)
    two = _Two(tmp_path, [near], looks_every_s=8 * HOUR_S)
    frames = two.send(0, 1)
    with meeting(two.loop, two.clients):
        two.loop.pause(10 * HOUR_S + 1.0)
        assert (two.peer(0, 1).next_look_s or 0.0) > HOUR_S
        other = two.send(1, 0)
        two.loop.pause(15.0)
        assert two.has(two.clients[1], 0, frames)
        assert two.has(two.clients[0], 1, other)
        assert two.peer(0, 1).is_connected
        two.loop.pause(HOUR_S)
        met = two.peer(0, 1).channels["bluetooth"].last_met_unix_s
        assert met is not None
        assert 10 * HOUR_S < met - EPOCH_S <= 10 * HOUR_S + 20.0
        assert two.peer(0, 1).last_met_unix_s == met
        assert two.peer(0, 1).next_look_s is None


def test_link_that_a_peer_made_and_that_broke_is_worth_a_look(tmp_path: Path) -> None:
    two = _Two(tmp_path, [contact(0, 1, 7000.0, 7070.0)], bytes_per_s=300.0, looks_every_s=DAY_S)
    two.send(0, 1)
    key = header_of(0, 1, rows=64).key
    with meeting(two.loop, two.clients):
        two.loop.pause(6900.0)
        # It looks for the block, so the client that looks rarely is found.
        assert two.clients[1].depot.receive_block(key) is None
        two.loop.pause(300.0)
    assert two.peer(0, 1).channels["bluetooth"].links == 1
    after_s = [look.at_s for look in two.country.looks if look.client == 0 and look.at_s >= 7070.0]
    assert after_s[0] < 7071.0
    assert after_s[1] < 7072.0


def test_link_that_nobody_needs_makes_room_for_others(tmp_path: Path) -> None:
    two = _Two(tmp_path, [contact(0, 1, 0.0, HOUR_S)])
    first = two.send(0, 1)
    with meeting(two.loop, two.clients):
        two.loop.pause(20.0)
        assert two.has(two.clients[1], 0, first)
        assert two.peer(0, 1).is_connected
        two.loop.pause(60.0)
        for client in (0, 1):
            found = two.peer(client, 1 - client)
            assert not found.is_connected
            assert (found.last_error, dict(found.refusals)) == ("", {})
            assert found.next_look_s is None
        # Either of them may want the next one.
        for number, sender in enumerate((1, 0), start=1):
            frames = two.send(sender, 1 - sender, layer=number)
            two.loop.pause(10.0)
            assert two.has(two.clients[1 - sender], sender, frames, layer=number)
            two.loop.pause(100.0)
        assert two.peer(0, 1).channels["bluetooth"].links == 3


def test_link_stays_while_a_frame_takes_its_time(tmp_path: Path) -> None:
    two = _Two(tmp_path, [contact(0, 1, 0.0, HOUR_S)], bytes_per_s=2000.0)
    header = replace(header_of(0, 1, rows=512), job="job-2")
    frames = frames_of(header)
    assert max(map(len, frames)) > 60.0 * 2000.0
    two.clients[0].depot.send_block(header.key, frames)
    two.clients[1].depot.admit_job("job-2", Plan(rows=512))
    with meeting(two.loop, two.clients):
        two.loop.pause(150.0)
        assert not two.clients[0].depot.owed()
        assert two.peer(1, 0).channels["bluetooth"].links == 1


def test_link_stays_while_a_block_waits_for_its_job(tmp_path: Path) -> None:
    two = _Two(tmp_path, [contact(0, 1, 0.0, HOUR_S)])
    header = replace(header_of(0, 1, rows=64), job="job-2")
    two.clients[0].depot.send_block(header.key, frames_of(header))
    with meeting(two.loop, two.clients):
        two.loop.pause(0.5 * HOUR_S)
        assert two.peer(0, 1).is_connected
        two.clients[1].depot.admit_job("job-2", Plan(rows=64))
        two.loop.pause(5.0)
        assert not two.clients[0].depot.owed()
        assert two.peer(0, 1).channels["bluetooth"].links == 1
