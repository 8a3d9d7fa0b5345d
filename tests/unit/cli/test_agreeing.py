"""``retexo keys``: owners agree on masked sums, and on nothing that they did not sign."""

from __future__ import annotations

import datetime
import json
import re
import shutil
import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from retexo_fl.agent.agreed import OwnersFile
from retexo_fl.agent.settings import read_settings
from retexo_fl.channels.federation import Federation
from retexo_fl.channels.identity import Identity
from retexo_fl.channels.roster import Roster, parse_tables
from retexo_fl.client.preparation import make_parts
from retexo_fl.config import make_config
from retexo_fl.errors import AgreementError, CheckpointError, RetexoError
from retexo_fl.graph import GraphPartition
from retexo_fl.graph.parts.storage import write_partition
from tests.support.cli import CommandLine, Ended

ALL = "nodes, test, train, validation"


@dataclass(frozen=True)
class Owners:
    """Owners with a folder each in ``root``, and who joins their files in ``root`` itself."""

    root: Path
    retexo: CommandLine
    parts: Sequence[GraphPartition]

    def begin(self, *clients: int) -> None:
        """Make key, part and settings of clients."""
        for client in clients:
            folder = self.root / str(client)
            self.keys("new", "--client", client, "--out", folder)
            write_partition(self.parts[client], folder / "part")
            names = {"partition": "part", "state": "state", "socket": "a.sock", "key": "key.pem"}
            names |= {"certificate": "certificate.pem", "roster": "roster.toml"}
            text = "\n".join(f"{key} = {json.dumps(value)}" for key, value in names.items())
            (folder / "agent.toml").write_text(text)
            (folder / "state").mkdir()

    def keys(self, *words: object, code: int = 0) -> Ended:
        ended = self.retexo("keys", *map(str, words))
        assert ended.code == code, ended.err
        return ended

    def of(self, client: int, command: str, *words: object, code: int = 0) -> Ended:
        """Let an owner do something."""
        config = self.root / str(client) / "agent.toml"
        return self.keys(command, *words, "--config", config, code=code)

    def propose(self, name: str, *clients: int, words: Sequence[object] = (), code: int = 0) -> str:
        """Have owners promise, and join that; return what was said."""
        for client in clients:
            self.of(client, "member")
        members = [self.root / str(client) / "member.toml" for client in clients]
        ended = self.keys("roster", *members, *words, "--out", self.root / name, code=code)
        return ended.out + ended.err

    def sign(self, name: str, *clients: int) -> list[Path]:
        """Have owners sign; return the files of their signatures."""
        ended = [self.of(client, "sign", self.root / name) for client in clients]
        return [Path(one.out.splitlines()[-1]) for one in ended]

    def agree(self, name: str, *clients: int, words: Sequence[object] = ()) -> Path:
        """Have owners agree; return the file."""
        self.propose(f"proposed-{name}", *clients, words=words)
        signatures = self.sign(f"proposed-{name}", *clients)
        out = self.root / name
        self.keys("roster", self.root / f"proposed-{name}", *signatures, "--out", out)
        return out

    def file_of(self, client: int, agreed: Path) -> OwnersFile:
        """Give an agent's owner a file, and return what its agent sees."""
        folder = self.root / str(client)
        shutil.copy(agreed, folder / "roster.toml")
        identity = Identity.load(folder / "key.pem", folder / "certificate.pem")
        return OwnersFile(read_settings(folder / "agent.toml"), identity)


@pytest.fixture(scope="module")
def parts() -> list[GraphPartition]:
    return make_parts(make_config({"clients": 9}))


@pytest.fixture
def owners(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, parts: list[GraphPartition]
) -> Owners:
    return Owners(tmp_path, CommandLine(capsys), parts)


def test_owners_agree_and_compare_what_they_have(owners: Owners) -> None:
    owners.begin(0, 1, 2, 3)
    told = owners.propose("proposed.toml", 0, 1, 2, 3, words=["--tolerated", 1])
    secret = owners.root / "0" / "agreement-secret"
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    shown = owners.keys("show", owners.root / "proposed.toml").out
    assert "not signed   clients 0, 1, 2, 3" in shown
    (digits,) = re.findall(r"to be signed +([0-9a-f ]{49})", told)
    assert f"to be signed {digits}" in shown
    signatures = owners.sign("proposed.toml", 0, 1, 2)
    out = owners.root / "agreed.toml"
    few = owners.keys("roster", owners.root / "proposed.toml", *signatures, "--out", out, code=2)
    assert "client 3: not signed; expected a signature of each owner" in few.err
    assert not out.exists()
    signatures += owners.sign("proposed.toml", 3)
    owners.keys("roster", owners.root / "proposed.toml", *signatures, "--out", out)
    shown = owners.keys("show", out).out
    assert "tolerated    1 of a cohort" in shown
    assert f"cohort       0, 1, 2, 3: {ALL}\n" in shown
    agreements = {owners.file_of(client, out).agreement().digest for client in range(4)}
    assert len(agreements) == 1
    assert f"agreed       {agreements.pop()[:20].hex(' ', 2)}" in shown
    # Who the clients are is read from it as from any roster.
    assert list(Roster.read(out).members) == [0, 1, 2, 3]


def test_an_owner_tells_its_number_once(owners: Owners) -> None:
    owners.begin(0, 1, 2)
    owners.propose("one.toml", 0, 1, 2)
    (path,) = owners.sign("one.toml", 0)
    content = path.read_bytes()
    assert owners.sign("one.toml", 0) == [path]
    members = [owners.root / str(client) / "member.toml" for client in range(3)]
    owners.keys("roster", *members, "--cohort-size", 3, "--out", owners.root / "other.toml")
    again = owners.of(0, "sign", owners.root / "other.toml", code=2)
    assert "this owner's number was told for another file; expected one of a new promise" in (
        again.err
    )
    assert path.read_bytes() == content
    # What it signed is not taken for the other file either.
    joined = owners.root / "joined.toml"
    other = owners.keys("roster", owners.root / "other.toml", path, "--out", joined, code=2)
    assert "client 0: signed" in other.err
    assert "what is agreed on was changed since" in other.err


def with_another(name: str, text: str) -> str:
    """Change the first digit of the first value of a name."""

    def other(found: re.Match[str]) -> str:
        return f'{name} = "{"1" if found[1] == "0" else "0"}'

    return re.sub(f'{name} = "(.)', other, text, count=1)


#: What somebody may change in a file that owners have signed.
CHANGES: list[tuple[Callable[[str], str], str]] = [
    (lambda text: text.replace("tolerated = 0", "tolerated = 1"), "expected 4 at least"),
    (lambda text: text.replace("cohort-size = 0", "cohort-size = 3"), "changed since"),
    (lambda text: text.replace('    "train",\n', "", 1), "client 0: signed"),
    (lambda text: with_another("part", text), "client 0: signed"),
    (lambda text: with_another("commitment", text), "changed"),
    (lambda text: with_another("\nnumber", text), "its number is"),
    (lambda text: with_another("\nsignature", text), "client 0: its signature is not by the key"),
    (lambda text: text[: text.index("[[signature]]")], "clients 0, 1, 2: not signed"),
    (lambda text: text.replace("least = 3", "least = 2"), "least: 2; expected 3"),
    (lambda text: text.replace("least = 3", "least = 4"), "3 clients; expected 4 at least"),
    (lambda text: text.replace("date = 2", "day = 2"), "agreement: expected the keys"),
    (lambda text: text.replace("[agreement]", "[[agreement]]"), "expected the keys"),
    (lambda text: text.replace("[agreement]", "[past]"), "its roster file has no agreement"),
    (lambda text: text + '\n[[past]]\nuses = []\nmembers = [[0, "", "", []]]', "past: key"),
    (lambda text: text + "\n[[release]]\nclient = 0", "release: expected the keys"),
]


def test_what_was_not_signed_is_not_believed(owners: Owners) -> None:
    owners.begin(0, 1, 2)
    out = owners.agree("agreed.toml", 0, 1, 2)
    text = out.read_text()
    for change, sentence in CHANGES:
        assert change(text) != text
        out.write_text(change(text))
        with pytest.raises(RetexoError, match=sentence):
            owners.file_of(0, out).agreement()
    assert not (owners.root / "0" / "state" / "cohorts.jsonl").exists()
    out.write_text(text)
    owners.file_of(0, out).agreement()


def test_addresses_may_change(owners: Owners) -> None:
    owners.begin(0, 1, 2)
    out = owners.agree("agreed.toml", 0, 1, 2)
    before = owners.file_of(0, out).agreement()
    out.write_text(out.read_text().replace("addresses = []", 'addresses = ["tcp://h:1"]', 1))
    assert owners.file_of(0, out).agreement() == before


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--tolerated", 1], "3 clients; expected 4 at least (3, and 1 that may work with"),
        (["--least", 2], "least: 2; expected 3"),
        (["--cohort-size", 2], "cohort size 2; expected 3 at least"),
        (["--silent", "0"], "--silent '0'; expected CLIENT=DATE, such as 4="),
    ],
)
def test_terms_that_hide_nobody_are_refused(
    owners: Owners, words: list[object], sentence: str
) -> None:
    owners.begin(0, 1, 2)
    assert sentence in owners.propose("proposed.toml", 0, 1, 2, words=words, code=2)
    assert not (owners.root / "proposed.toml").exists()


def test_a_roster_needs_a_promise_of_each_or_of_nobody(owners: Owners) -> None:
    owners.begin(0, 1, 2)
    for client in (0, 1):
        owners.of(client, "member")
    members = [owners.root / str(client) / "member.toml" for client in range(3)]
    ended = owners.keys("roster", *members, "--out", owners.root / "r.toml", code=2)
    assert "client 2: no promise in the member file" in ended.err
    owners.keys("roster", members[2], "--out", owners.root / "plain.toml")
    signed = owners.of(2, "sign", owners.root / "plain.toml", code=2)
    assert "is a roster alone; expected what owners agree on" in signed.err


def test_an_owner_signs_no_promise_but_its_own(owners: Owners) -> None:
    owners.begin(0, 1, 2)
    owners.propose("proposed.toml", 0, 1, 2)
    part = owners.root / "0" / "part"
    shutil.rmtree(part)
    write_partition(replace(owners.parts[0], partitioning="ab" * 32), part)
    changed = owners.of(0, "sign", owners.root / "proposed.toml", code=2)
    assert "client 0: its part is another than the one that its owner promised" in changed.err
    (owners.root / "1" / "agreement-secret").write_bytes(bytes(32))
    other = owners.of(1, "sign", owners.root / "proposed.toml", code=2)
    assert "client 1: its entry is not of this key and secret" in other.err
    assert not [*owners.root.glob("?/signature*")]


def test_a_client_that_leaves_needs_a_release(owners: Owners) -> None:
    owners.begin(0, 1, 2, 3, 4)
    first = owners.agree("first.toml", 0, 1, 2, 3, 4)
    log = owners.file_of(0, first)
    log.agreement()
    former = ["--former", first]
    told = owners.propose("second.toml", 0, 1, 2, 3, words=former, code=2)
    assert "the cohort of client 0: client 4 left it" in told
    shutil.copy(first, owners.root / "4" / "roster.toml")
    release = owners.root / "release.toml"
    owners.of(4, "release", "--out", release, "--after-days", 30)
    told = owners.propose("second.toml", 0, 1, 2, 3, words=[*former, release], code=2)
    assert "client 4: holds after 30 days of silence; nobody says since when" in told
    today = datetime.datetime.now(datetime.UTC).date()
    for days, expected in ((29, 2), (30, 0)):
        since = f"4={today - datetime.timedelta(days=days)}"
        told = owners.propose(
            f"second-{days}.toml", 0, 1, 2, 3,
            words=[*former, release, "--silent", since], code=expected,
        )  # fmt: skip
    text = (owners.root / "second-30.toml").read_text()
    changed = re.sub(r"after-days = 30", "after-days = 3", text)
    with pytest.raises(AgreementError, match="client 4: its signature is not valid"):
        Federation.of_tables(parse_tables(changed))
    signatures = owners.sign("second-30.toml", 0, 1, 2, 3)
    second = owners.root / "second.toml"
    owners.keys("roster", owners.root / "second-30.toml", *signatures, "--out", second)
    agreement = owners.file_of(0, second).agreement()
    assert [cohort.members for cohort in agreement.cohorts] == [(0, 1, 2, 3)]
    lines = (owners.root / "0" / "state" / "cohorts.jsonl").read_text().splitlines()
    assert [len(json.loads(line)["members"]) for line in lines] == [5, 4]


def test_an_agent_remembers_whom_it_was_added_up_with(owners: Owners) -> None:
    owners.begin(*range(7))
    first = owners.agree("first.toml", 0, 1, 2, 3, 4)
    owners.file_of(0, first).agreement()
    # A file that begins anew, without one who was there: 0 neither signs it nor answers by it.
    owners.propose("anew.toml", 0, 1, 2, 3)
    refused = owners.of(0, "sign", owners.root / "anew.toml", code=2)
    forgotten = "does not name the cohort 0, 1, 2, 3, 4, in which it answered before"
    assert f"client 0: the roster file {forgotten}" in refused.err
    state = owners.root / "0" / "state"
    log = state / "cohorts.jsonl"
    assert stat.S_IMODE(log.stat().st_mode) == 0o600
    kept = log.read_bytes()
    log.unlink()
    anew = owners.agree("anew-agreed.toml", 0, 1, 2, 3)
    log.write_bytes(kept)
    with pytest.raises(AgreementError, match=forgotten):
        owners.file_of(0, anew).agreement()
    # One that goes on from the former file, with others beside, is answered by; once it is added.
    log.write_bytes(kept + b'{"torn')
    wider = owners.agree("wider.toml", *range(5), words=["--former", first])
    owners.file_of(0, wider).agreement()
    owners.file_of(0, wider).agreement()
    assert log.read_bytes() == kept + b'{"torn'
    log.write_bytes(b"{}\n")
    with pytest.raises(CheckpointError, match="cohorts.jsonl: is damaged"):
        owners.file_of(0, wider).agreement()


def test_members_come_in_cohorts_of_their_own(owners: Owners) -> None:
    owners.begin(*range(8))
    first = owners.agree("first.toml", 0, 1, 2, 3, 4)
    told = owners.propose("few.toml", *range(6), words=["--former", first], code=2)
    assert "client 5: new" in told
    second = owners.agree("second.toml", *range(8), words=["--former", first])
    federation = Federation.read(second)
    assert federation is not None
    assert [c.members for c in federation.agreement.cohorts] == [(0, 1, 2, 3, 4), (5, 6, 7)]


def test_a_client_without_a_part_brings_its_table(owners: Owners) -> None:
    owners.begin(0)
    shutil.rmtree(owners.root / "0" / "part")
    assert owners.of(0, "member", "--without-part").out.startswith("client 0 brings nodes\n")
    assert owners.of(0, "member", code=2).err


def test_the_doctor_says_whether_a_client_may_answer(owners: Owners) -> None:
    owners.begin(0, 1, 2)

    def examined(roster: Path, *lines: str) -> str:
        folder = owners.root / "0"
        shutil.copy(roster, folder / "roster.toml")
        settings = folder / "agent.toml"
        kept = settings.read_text()
        settings.write_text("\n".join([kept, *lines]))
        told = owners.retexo("doctor", "--config", settings, "--json").out
        settings.write_text(kept)
        (found,) = [one for one in json.loads(told) if one["thing"] == "agreement"]
        return f"{found['verdict']}: {found['seen']}"

    members = [owners.root / str(client) / "member.toml" for client in range(3)]
    plain = owners.root / "plain.toml"
    owners.keys("roster", *members, "--out", plain)
    assert examined(plain) == "absent: none; runs with masks are refused"
    required = examined(plain, "require-secure-aggregation = true")
    assert required == "bad: none, and require-secure-aggregation = true"
    out = owners.agree("agreed.toml", 0, 1, 2)
    digest = owners.file_of(1, out).agreement().digest.hex()[:8]
    assert examined(out) == f"good: {digest}..., {ALL} with clients 1, 2"
    assert not (owners.root / "0" / "state" / "cohorts.jsonl").exists()
    shutil.rmtree(owners.root / "0" / "part")
    assert "bad: client 0: its part is another" in examined(out)
