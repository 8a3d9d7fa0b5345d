from __future__ import annotations

from retexo_fl.ledger import ALL_PEERS, SERVER, Account, TrafficLedger, Volume


def account(kind: str, *, peer: int = SERVER, direction: str = "out", client: int = 0) -> Account:
    return Account(
        attempt=1,
        kind=kind,
        layer=0,
        purpose="train",
        client=client,
        peer=peer,
        direction=direction,
    )


def filled() -> TrafficLedger:
    ledger = TrafficLedger()
    rows = Volume(messages=1, raw=400, payload=40, wire=60)
    ledger.add(account("boundary", peer=1), rows)
    ledger.add(account("boundary", peer=0, client=1, direction="in"), rows)
    ledger.add(account("updates_up"), Volume(messages=1, raw=100, payload=100, wire=None))
    ledger.add(account("updates_up"), Volume(messages=1, raw=100, payload=100, wire=None))
    ledger.add(account("weights_down", direction="in"), Volume(messages=1, raw=7, payload=7))
    return ledger


def test_totals_count_a_byte_once_at_its_sender() -> None:
    totals = filled().totals()
    assert totals["raw"] == {
        "boundary": 400,
        "updates_up": 200,
        "weights_down": 7,
        "control": 0,
        "total": 607,
    }
    assert totals["payload"]["total"] == 247


def test_totals_of_wire_are_none_where_not_all_was_measured() -> None:
    wire = filled().totals()["wire"]
    assert wire["boundary"] == 60
    assert wire["updates_up"] is None
    assert wire["total"] is None


def test_sum_of_a_direction_counts_that_end() -> None:
    assert filled().sum(kind="boundary", direction="in").raw == 400
    assert filled().sum(kind="boundary", client=1).raw == 0


def test_groups_are_sums_of_their_attributes() -> None:
    ledger = filled()
    assert ledger.grouped("kind", "client") == {
        ("boundary", 0): ledger.sum(kind="boundary", client=0),
        ("updates_up", 0): Volume(messages=2, raw=200, payload=200, wire=None),
        ("weights_down", 0): Volume(messages=1, raw=7, payload=7),
    }
    assert ledger.grouped("direction") == {
        ("out",): ledger.sum(direction="out"),
        ("in",): Volume(messages=2, raw=407, payload=47, wire=60),
    }


def test_sum_leaves_out_what_arrived_from_all_peers() -> None:
    ledger = TrafficLedger()
    ledger.add(account("boundary", peer=ALL_PEERS, direction="in"), Volume(raw=5))
    assert ledger.sum().raw == 0


def test_csv_keeps_every_account() -> None:
    ledger = filled()
    copy = TrafficLedger.from_csv(ledger.to_csv().splitlines())
    assert copy.lines() == ledger.lines()
    assert copy.to_csv() == ledger.to_csv()


def test_changes_after_a_whole_account_are_the_account() -> None:
    ledger = filled()
    told = [ledger.to_csv()]
    assert sorted(ledger.changes().splitlines()) == sorted(told[0].splitlines()[1:])
    for _ in range(3):
        ledger.add(account("updates_up"), Volume(messages=1, raw=50, payload=50))
        ledger.add(account("control", client=len(told)), Volume(messages=1, raw=9))
        ledger.add(account("updates_up"), Volume(messages=1, raw=50, payload=50))
        if len(told) == 2:
            ledger.to_csv()
        told.append(ledger.changes())
        assert len({*told[-1].splitlines()}) == 2
    assert ledger.changes() == ""
    copy = TrafficLedger.from_csv("".join(told).splitlines())
    assert copy.lines() == ledger.lines()
    assert copy.totals() == ledger.totals()
    assert copy.changes() == ""


def test_a_sum_that_is_told_again_or_late_adds_nothing() -> None:
    account = Account(
        attempt=1, kind="boundary", layer=0, purpose="exchange", client=0, peer=-2, direction="out"
    )
    ledger, whole = TrafficLedger(), Volume(messages=5, raw=40, payload=30, wire=35)
    for told in (Volume(messages=2, raw=16, payload=12, wire=14), whole, whole):
        ledger.raise_to(account, told)
    ledger.raise_to(account, Volume(messages=1, raw=8, payload=6, wire=7))
    assert ledger.sum() == whole
