"""One recipe of all tables, of which the server sees sums alone; and who may ask for those."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from retexo_fl.agent.masked_sharing import MaskedShare
from retexo_fl.agent.sharing import SummaryShare
from retexo_fl.channels.federation import Federation
from retexo_fl.channels.identity import Identity
from retexo_fl.channels.roster import Roster
from retexo_fl.client.api import (
    AnswerT,
    ColumnsAnswer,
    ColumnsRequest,
    ColumnSumsRequest,
    HelloRequest,
    KeysRequest,
    MaskedAnswer,
    Request,
    SummaryRequest,
    Ticket,
)
from retexo_fl.errors import (
    ConfigurationError,
    LocalProtocolError,
    PartitionError,
    RemoteProtocolError,
    RetexoError,
    SecureAggregationRefused,
)
from retexo_fl.federation.recipe_app import RecipeTask
from retexo_fl.graph.recipes import FeatureRecipe, TableSummary, fit_recipe
from retexo_fl.graph.sources.tables import ColumnChoice, summarise_table
from retexo_fl.masking.agreement import Agreement
from tests.integration.test_shared_recipe import Asked, made, replaced
from tests.support.loopback import make_members
from tests.support.owners import agreed, signer_of
from tests.support.recipes import THREE, write_sites

CLIENTS = 3
LEAST = 10
TICKET = Ticket(job="recipe-0", attempt=1)
TASK = RecipeTask(out="", logarithms=("balance",))


@dataclass(frozen=True, slots=True, kw_only=True)
class Sites:
    """Three clients.

    Attributes:
        tables: By client.
        whole: Of the table that has all rows.
        identities: By client; ``roster`` has them.
    """

    tables: list[TableSummary]
    whole: TableSummary
    identities: list[Identity]
    roster: Roster
    federation: Federation

    def share(self, client: int, out: Path, **limits: int) -> SummaryShare:
        signer = signer_of(self.identities[client], self.roster, self.federation)
        limits = {"least_clients": 3, "least_nodes": LEAST, **limits}
        table = self.tables[client]
        return SummaryShare(table, out / f"{client}.toml", MaskedShare(table, signer, **limits))

    def shares(self, out: Path) -> list[SummaryShare]:
        return [self.share(client, out) for client in range(CLIENTS)]


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> Sites:
    folder = tmp_path_factory.mktemp("sites")
    choice = ColumnChoice(drop=("code",))
    paths = [write_sites(folder, THREE), *(folder / f"{name}.csv" for name in THREE)]
    whole, *tables = [summarise_table(path, choice) for path in paths]
    identities, roster = make_members(folder, CLIENTS)
    return Sites(
        tables=tables,
        whole=whole,
        identities=identities,
        roster=roster,
        federation=agreed(roster, identities),
    )


class Watched(Asked):
    """Keeps what a server gets."""

    def __init__(self, share: SummaryShare, false: Callable[[Any], Any] = lambda a: a) -> None:
        super().__init__(share, false)
        self.got: list[Any] = []

    def ask(self, request: Request[AnswerT]) -> AnswerT:
        answer = super().ask(request)
        self.got.append(answer)
        return answer


def masked(clients: Sequence[Any], task: RecipeTask = TASK) -> FeatureRecipe:
    return made(clients, task, masked=True)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1)])
def test_the_recipe_has_the_bytes_of_the_whole_table(
    sites: Sites, tmp_path: Path, order: Sequence[int]
) -> None:
    clients = [Watched(sites.share(client, tmp_path)) for client in order]
    recipe = masked(clients, replace(TASK, drop=("bank",)))
    expected, _ = fit_recipe(sites.whole.without(("bank",)), TASK)
    assert recipe.to_toml() == expected.to_toml()
    assert [category.values for category in recipe.categories] == [("DE", "FR")]
    for client in order:
        assert (tmp_path / f"{client}.toml").read_text() == expected.to_toml()
    for each in clients:
        columns, _, sums, _ = each.got
        told = json.loads(columns.columns.tobytes())
        # Malta's few nodes are not named; of numbers nothing is told.
        assert told["columns"] == {
            "balance": {"kind": "numbers"},
            "bank": {"kind": "texts", "texts": ["ours"]},
            "country": {"kind": "texts", "texts": ["DE", "FR"]},
            "opened": {"kind": "days"},
        }
        assert isinstance(sums, MaskedAnswer)


def test_what_a_client_adds_looks_like_noise(sites: Sites, tmp_path: Path) -> None:
    numbers = []
    for _ in range(2):
        clients = [Watched(share) for share in sites.shares(tmp_path)]
        masked(clients)
        numbers.append([client.got[2].numbers for client in clients])
    for one, other in zip(*numbers, strict=True):
        # Sums of small numbers are zeros nearly everywhere; noise has each byte as often.
        assert np.count_nonzero(one) > 0.99 * len(one)
        assert np.count_nonzero(one == other) < 0.05 * len(one)


def columns_of(clients: Sequence[Asked], ticket: Ticket = TICKET) -> list[ColumnsAnswer]:
    """Ask for columns, and hand out keys."""
    found = [client.ask(ColumnsRequest(ticket=ticket)) for client in clients]
    request = KeysRequest(
        ticket=ticket,
        agreement=Agreement.parse(found[0].agreement).digest,
        cohort=tuple(range(len(found))),
        uses="nodes",
        keys=np.frombuffer(b"".join(answer.mask_key for answer in found), np.uint8),
        signatures=b"".join(answer.mask_signature for answer in found),
    )
    for client in clients:
        client.ask(request)
    return found


def sums(columns: np.ndarray, *, ticket: Ticket = TICKET) -> ColumnSumsRequest:
    return ColumnSumsRequest(ticket=ticket, columns=columns)


def edited(columns: np.ndarray, edit: Callable[[dict[str, Any]], object]) -> np.ndarray:
    values = json.loads(columns.tobytes())
    edit(values["columns"])
    return np.frombuffer(json.dumps(values).encode(), np.uint8)


def test_a_lying_server_gets_one_sum_and_no_other(sites: Sites, tmp_path: Path) -> None:
    clients = [Asked(share) for share in sites.shares(tmp_path)]
    columns = columns_of(clients)[0].columns
    first = clients[0].ask(sums(columns))
    # The same question has the same answer.
    assert np.array_equal(clients[0].ask(sums(columns)).numbers, first.numbers)
    other = edited(columns, lambda c: c["country"]["texts"].append("MT"))
    for request in (
        sums(other),
        sums(edited(columns, lambda c: c.pop("country"))),
        sums(columns, ticket=replace(TICKET, round=1)),
        sums(columns, ticket=replace(TICKET, stage=1)),
        sums(columns, ticket=replace(TICKET, attempt=2)),
    ):
        with pytest.raises(SecureAggregationRefused):
            clients[0].ask(request)
    # A second job may ask for the same sum, which has other masks, and for no other.
    ticket = replace(TICKET, job="recipe-1")
    columns_of(clients, ticket)
    for request in (
        sums(other, ticket=ticket),
        sums(edited(columns, lambda c: c.pop("country")), ticket=ticket),
    ):
        with pytest.raises(
            SecureAggregationRefused, match="^sums were told that are of other columns; a second"
        ):
            clients[0].ask(request)
    again = clients[0].ask(sums(columns, ticket=ticket))
    assert np.count_nonzero(again.numbers == first.numbers) < 0.05 * len(first.numbers)


def test_an_owner_who_begins_again_does_so_alone(sites: Sites, tmp_path: Path) -> None:
    """Client 2 dies after the others have told their sums, or after it has told its own."""
    clients = [Asked(share) for share in sites.shares(tmp_path)]
    columns = columns_of(clients)[0].columns
    for client in clients:
        client.ask(sums(columns))
    clients[2] = Asked(sites.share(2, tmp_path))
    with pytest.raises(SecureAggregationRefused, match="`retexo features fit` once more"):
        clients[2].ask(sums(columns))
    recipe = masked(clients)
    assert recipe.to_toml() == fit_recipe(sites.whole, TASK)[0].to_toml()
    # With another table its own numbers may change, not what others are asked for.
    fewer = replace(sites, tables=[*sites.tables[:2], sites.tables[2].without(("country",))])
    clients = [Asked(share) for share in sites.shares(tmp_path)]
    columns = columns_of(clients)[0].columns
    for client in clients:
        client.ask(sums(columns))
    clients[2] = Asked(fewer.share(2, tmp_path))
    with pytest.raises(RetexoError, match="columns of client 2: column 'country' is missing"):
        masked(clients)


@pytest.mark.parametrize(
    ("request_", "sentence"),
    [
        (lambda c: sums(edited(c, lambda v: v.update(code={"kind": "none"}))), "'code' is no col"),
        (lambda c: sums(edited(c, lambda v: v.update(bank={"kind": "numbers"}))), "'bank': numb"),
        (lambda c: sums(edited(c, lambda v: v["bank"].update(texts=[]))), "'bank': texts without"),
        (lambda c: sums(c[:9]), "the server's columns: not JSON"),
        (lambda c: sums(c, ticket=replace(TICKET, job="j")), "has told no columns for this"),
    ],
)
def test_what_would_tell_more_than_a_sum_is_refused(
    sites: Sites,
    tmp_path: Path,
    request_: Callable[[np.ndarray], ColumnSumsRequest],
    sentence: str,
) -> None:
    clients = [Asked(share) for share in sites.shares(tmp_path)]
    columns = columns_of(clients)[0].columns
    with pytest.raises(SecureAggregationRefused, match=sentence):
        clients[0].ask(request_(columns))


def test_an_owner_has_a_say_in_how_many_a_sum_is_over(sites: Sites, tmp_path: Path) -> None:
    shares = [*sites.shares(tmp_path)[:2], sites.share(2, tmp_path, least_clients=4)]
    with pytest.raises(
        SecureAggregationRefused,
        match="a sum of 3 clients; expected 4 at least .least-clients in its agent.toml",
    ):
        masked([Asked(share) for share in shares])
    assert not list(tmp_path.glob("*.toml"))


def test_a_summary_that_cannot_be_added_up_is_refused_before_the_server_asks(
    sites: Sites, tmp_path: Path
) -> None:
    balance = sites.tables[0].columns["balance"]
    numbers = replace(balance.numbers, squares=balance.numbers.squares * 2**1500)
    columns = {**sites.tables[0].columns, "balance": replace(balance, numbers=numbers)}
    other = replace(sites, tables=[replace(sites.tables[0], columns=columns)])
    with pytest.raises(ConfigurationError, match="^.*north.csv: a sum is larger than any of float"):
        other.share(0, tmp_path)


def test_keys_that_the_roster_does_not_have_are_not_believed(sites: Sites, tmp_path: Path) -> None:
    others, _ = make_members(tmp_path / "others", CLIENTS)
    false = replace(sites, identities=[*sites.identities[:2], others[2]])
    shares = [*sites.shares(tmp_path)[:2], false.share(2, tmp_path)]
    with pytest.raises(SecureAggregationRefused, match="masking key of client 2 is not signed by"):
        masked([Asked(share) for share in shares])


def shifted(answer: Any) -> Any:
    if not isinstance(answer, MaskedAnswer):
        return answer
    return replace(answer, numbers=answer.numbers + np.uint8(1))


def with_columns(edit: Callable[[dict[str, Any]], object]) -> Callable[[Any], Any]:
    def false(answer: Any) -> Any:
        if not isinstance(answer, ColumnsAnswer):
            return answer
        return replace(answer, columns=edited(answer.columns, edit))

    return false


@pytest.mark.parametrize(
    ("false", "error", "sentence"),
    [
        (
            replaced(numbers=np.zeros(5, np.uint8)),
            RemoteProtocolError,
            "client 1: a masked number has 5 bytes; expected",
        ),
        (shifted, RemoteProtocolError, "sums over all clients: .* numbers of its own choice"),
        (
            with_columns(lambda c: c["bank"].update(kind="dates")),
            RemoteProtocolError,
            "columns of client 1: bank: got 'dates'; expected one of",
        ),
        (
            with_columns(lambda c: c.pop("bank")),
            ConfigurationError,
            "columns of client 1: column 'bank' is missing",
        ),
        (
            with_columns(lambda c: c.update(bank={"kind": "numbers"})),
            ConfigurationError,
            "bank: holds numbers in columns of client 1 and texts in columns of client 0",
        ),
        (replaced(client=0), PartitionError, "two nodes are client 0"),
        (replaced(client=9), ConfigurationError, "clients: clients 0, 2, 9 answered; expected 0"),
        (replaced(mask_key=b"k" * 32), SecureAggregationRefused, "key of client 1 is not signed"),
        (replaced(digest=b"d" * 32), RemoteProtocolError, "client 1: it believes other masking"),
    ],
)
def test_a_lying_client_ends_it_by_name(
    sites: Sites,
    tmp_path: Path,
    false: Callable[[Any], Any],
    error: type[RetexoError],
    sentence: str,
) -> None:
    shares = sites.shares(tmp_path)
    clients = [Asked(shares[0]), Asked(shares[1], false), Asked(shares[2])]
    with pytest.raises(error, match=sentence):
        masked(clients)
    assert not list(tmp_path.glob("*.toml"))


def test_clients_that_are_shown_different_sums_give_noise(sites: Sites, tmp_path: Path) -> None:
    class Lied(Asked):
        def ask(self, request: Request[AnswerT]) -> AnswerT:
            if isinstance(request, ColumnSumsRequest):
                other = request.columns.tobytes().replace(b'"yes"', b'"may"')
                lie: Any = replace(request, columns=np.frombuffer(other, np.uint8))
                request = lie
            return super().ask(request)

    shares = sites.shares(tmp_path)
    with pytest.raises(RemoteProtocolError, match="^sums over all clients: .* different sums"):
        masked([Asked(shares[0]), Lied(shares[1]), Asked(shares[2])])


def test_what_is_not_told_in_one_way_is_not_told_in_the_other(sites: Sites, tmp_path: Path) -> None:
    under_masks = Asked(sites.share(0, tmp_path))
    in_the_clear = Asked(SummaryShare(sites.tables[0], tmp_path / "r.toml"))
    with pytest.raises(ConfigurationError, match="^secure-aggregation: .* only under masks"):
        under_masks.ask(SummaryRequest(ticket=TICKET))
    with pytest.raises(ConfigurationError, match="^secure-aggregation: .* without masks"):
        in_the_clear.ask(ColumnsRequest(ticket=TICKET))
    for share in (under_masks, in_the_clear):
        with pytest.raises(LocalProtocolError, match="this client has no part yet"):
            share.ask(HelloRequest(ticket=TICKET))
