"""What the server takes for the owners' agreement: the same of all clients, or nothing."""

from __future__ import annotations

import pytest

from retexo_fl.client.api import HelloAnswer
from retexo_fl.errors import AgreementError, RemoteProtocolError
from retexo_fl.federation.rounds.mask_keys import agreed_by
from retexo_fl.masking.agreement import simulated
from tests.support.promises import hello_of

ALL = frozenset({"train", "validation", "test", "nodes"})
ONE = simulated(dict.fromkeys(range(6), ALL), seed=0)
OTHER = simulated(dict.fromkeys(range(6), ALL), seed=1)


def told(agreement: bytes | None) -> HelloAnswer:
    return hello_of(0, agreement=agreement)


def test_clients_whose_owners_have_the_same_file_agree() -> None:
    assert agreed_by({client: told(ONE.content) for client in range(6)}) == ONE
    # Some may be away.
    assert agreed_by({client: told(ONE.content) for client in (0, 4)}) == ONE


def test_different_files_are_told_by_client() -> None:
    by_client = {client: told((OTHER if client in {1, 4} else ONE).content) for client in range(6)}
    with pytest.raises(AgreementError) as raised:
        agreed_by(by_client)
    one, other = (each.digest[:8].hex(" ", 2) for each in (ONE, OTHER))
    assert f"differ in what owners agreed on: clients 0, 2, 3, 5 {one}; clients 1, 4 {other};" in (
        str(raised.value)
    )


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (None, "client 1: told no agreement of its owners"),
        (b"{}", "client 1: .*not an agreement"),
        (ONE.content.replace(b'"least":3', b'"least":1'), "client 1: .*least: 1"),
    ],
)
def test_a_client_that_tells_none_is_named(content: bytes | None, sentence: str) -> None:
    with pytest.raises(RemoteProtocolError, match=sentence):
        agreed_by({0: told(ONE.content), 1: told(content)})


def test_a_client_that_is_in_no_cohort_is_named() -> None:
    with pytest.raises(AgreementError, match="client 7 is in no cohort"):
        agreed_by({0: told(ONE.content), 7: told(ONE.content)})
