from __future__ import annotations

from pathlib import Path

from retexo_fl.federation.ledger_file import LedgerFile
from retexo_fl.ledger import SERVER, Account, TrafficLedger, Volume


def _account(client: int) -> Account:
    return Account(
        attempt=1,
        kind="control",
        layer=0,
        purpose="train",
        client=client,
        peer=SERVER,
        direction="in",
    )


def test_what_a_crash_left_behind_a_checkpoint_is_written_over(tmp_path: Path) -> None:
    ledger, file = TrafficLedger(), LedgerFile(tmp_path)
    for client in range(2):
        ledger.add(_account(client), Volume(messages=1, raw=5))
        named = file.next_piece(ledger)
        file.write(named)
    (path,) = tmp_path.iterdir()
    with path.open("ab") as left:
        left.write(b"1,control,0,train,7,-1,in,9,9,9,9\n1,contr")
    again = LedgerFile(tmp_path)
    read = again.read(named.facts)
    assert read.lines() == ledger.lines()
    read.add(_account(1), Volume(messages=1, raw=5))
    appended = again.next_piece(read)
    assert (appended.number, appended.begin) == (named.number, named.facts["bytes"])
    again.write(appended)
    assert path.stat().st_size == appended.facts["bytes"]
    assert LedgerFile(tmp_path).read(appended.facts).lines() == read.lines()
