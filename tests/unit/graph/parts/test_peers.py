"""The peers file: what it means, and what it may not say."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from retexo_fl.errors import ConfigurationError
from retexo_fl.graph.parts.peers import Peers, peers_of, read_peers
from tests.unit.graph.graphs import small_parts

GOOD: dict[str, Any] = {
    "partitioning": "trial 7",
    "classes": 2,
    "features": 3,
    "sparse-features": True,
    "clients": ["ward", "läb"],
}


def _read(tmp_path: Path, **changes: Any) -> Peers:
    values = {**GOOD, **{key.replace("_", "-"): value for key, value in changes.items()}}
    path = tmp_path / "peers.toml"
    path.write_bytes(
        tomli_w.dumps({key: value for key, value in values.items() if value is not None}).encode()
    )
    return read_peers(path)


def _refused(tmp_path: Path, **changes: Any) -> str:
    with pytest.raises(ConfigurationError) as caught:
        _read(tmp_path, **changes)
    assert "\n" not in str(caught.value)
    return str(caught.value).removeprefix(f"{tmp_path}/peers.toml: ")


def test_peers_of_parts_are_read_as_they_were_written(tmp_path: Path) -> None:
    for sparse in (False, True):
        peers = peers_of(small_parts(sparse=sparse))
        path = tmp_path / f"{sparse}.toml"
        path.write_text(peers.to_toml())
        assert read_peers(path).to_toml() == peers.to_toml()
        assert peers.clients == ("client-0", "client-1")
        assert (peers.num_classes, peers.num_features) == (2, 2)
        assert peers.sparse_features == sparse
        assert peers.partitioning == small_parts(sparse=sparse)[0].partitioning


def test_sixty_four_digits_are_the_partitioning(tmp_path: Path) -> None:
    digits = "0123456789abcdef" * 4
    assert _read(tmp_path, partitioning=digits).partitioning == digits
    assert _read(tmp_path, partitioning=digits.upper()).partitioning != digits.upper()


def test_a_name_stands_for_a_digest_of_what_is_agreed_on(tmp_path: Path) -> None:
    content = (
        '{"classes":2,"clients":["ward","l\\u00e4b"],"features":3,"partitioning":"trial 7",'
        '"sparse-features":true}'
    )
    digits = hashlib.sha256(content.encode("ascii")).hexdigest()
    assert _read(tmp_path).partitioning == digits
    (tmp_path / "other.toml").write_text(
        '# Another layout.\nclients = [\n  "ward",  # first\n  "läb",\n]\nfeatures = 3\n'
        'classes = 2\nsparse-features = true\npartitioning = "trial 7"\n'
    )
    assert read_peers(tmp_path / "other.toml").partitioning == digits


def test_every_change_of_what_is_agreed_on_changes_the_digest(tmp_path: Path) -> None:
    changes: list[dict[str, Any]] = [
        {},
        {"partitioning": "trial 8"},
        {"classes": 3},
        {"features": 2},
        {"sparse_features": False},
        {"clients": ["läb", "ward"]},
        {"clients": ["ward", "läb", "more"]},
    ]
    assert len({_read(tmp_path, **change).partitioning for change in changes}) == len(changes)


def test_features_are_dense_unless_it_is_said(tmp_path: Path) -> None:
    dense, unsaid = _read(tmp_path, sparse_features=False), _read(tmp_path, sparse_features=None)
    assert not unsaid.sparse_features
    assert unsaid.partitioning == dense.partitioning


def test_index_of_names_the_nearest_client(tmp_path: Path) -> None:
    peers = _read(tmp_path)
    assert [peers.index_of(name) for name in peers.clients] == [0, 1]
    with pytest.raises(ConfigurationError) as caught:
        peers.index_of("wart")
    source = re.escape(f"{tmp_path}/peers.toml")
    assert re.fullmatch(rf"name: 'wart' .*2 clients.* {source}; .*'ward'\?", str(caught.value))
    with pytest.raises(ConfigurationError, match="name: '' .*2 clients"):
        peers.index_of("")


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"classes": None}, "classes: missing; expected partitioning, classes, features, sparse-"),
        ({"clients": None}, "clients: missing; expected"),
        ({"partitioning": None}, "partitioning: missing; expected"),
        ({"client": ["a"]}, "client: unknown key; expected partitioning, classes"),
        ({"classes": 0}, "classes: got 0; expected a whole number from 1 to 2147483647"),
        ({"classes": 2**31}, "classes: got 2147483648; expected a whole number"),
        ({"features": 1.5}, "features: got 1.5; expected a whole number"),
        ({"features": True}, "features: got True; expected a whole number"),
        ({"sparse_features": "yes"}, "sparse-features: got 'yes'; expected true or false"),
        ({"partitioning": ""}, "partitioning: got ''; expected a name, or 64 hex digits"),
        ({"partitioning": 7}, "partitioning: got 7; expected a name, or 64 hex digits"),
        ({"clients": []}, "clients: got []; expected a list of names, in the order of the"),
        ({"clients": "a"}, "clients: got 'a'; expected a list of names"),
        ({"clients": ["a", "b", "a"]}, "clients: got 'a'; expected each name once"),
        ({"clients": ["a", ""]}, "clients: got ''; expected printable names of at most 200"),
        ({"clients": ["a", "b\n"]}, "clients: got 'b\\n'; expected printable names"),
        ({"clients": ["a" * 201]}, "clients: got 'aaaaaaaa"),
        ({"clients": ["a", 1]}, "clients: got 1; expected printable names"),
    ],
)
def test_peers_files_that_are_refused(tmp_path: Path, changes: dict[str, Any], told: str) -> None:
    assert _refused(tmp_path, **changes).startswith(told)


def test_what_is_no_peers_file(tmp_path: Path) -> None:
    path = tmp_path / "peers.toml"
    for content, told in ((b"a = [", "not a TOML file"), (b"a = '\xff'", "not a TOML file")):
        path.write_bytes(content)
        with pytest.raises(ConfigurationError, match=f"peers.toml: {told}"):
            read_peers(path)
    path.unlink()
    with pytest.raises(ConfigurationError, match=r"cannot be read \(No such file"):
        read_peers(path)
    path.mkdir()
    with pytest.raises(ConfigurationError, match=r"peers.toml: .*\(Is a directory\)"):
        read_peers(path)
    path.rmdir()
    os.mkfifo(path)
    with pytest.raises(ConfigurationError, match="peers.toml: .*; expected a TOML file"):
        read_peers(path)
    with pytest.raises(ConfigurationError, match=r"cannot be read \(File name too long"):
        read_peers(tmp_path / ("n" * 300))


def test_peers_file_is_read_no_further_than_its_bound(tmp_path: Path) -> None:
    path = tmp_path / "peers.toml"
    with path.open("wb") as file:
        file.truncate(10 * 2**30)
    with pytest.raises(ConfigurationError, match="more than 67108864 bytes; expected a TOML"):
        read_peers(path)


#: Nothing of it stands in a file of nodes without types.
TYPED: dict[str, Any] = {
    "features": None,
    "sparse-features": None,
    "types": [{"name": "user", "features": 3}, {"name": "item", "features": 0}],
    "labelled": "user",
    "relations": [
        {"source": "user", "name": "buys", "target": "item"},
        {"source": "user", "name": "knows", "target": "user"},
    ],
}


def test_types_and_relations_are_read_and_written(tmp_path: Path) -> None:
    peers = _read(tmp_path, **TYPED)
    assert peers.relations is not None
    assert (peers.relations.types, peers.relations.widths) == (("user", "item"), (3, 1))
    assert peers.type_widths == (3, 0)
    assert (peers.num_features, peers.sparse_features) == (4, True)
    assert [one.symmetric for one in peers.relations.relations] == [False, True]
    assert [peers.has_sides(relation) for relation in (0, 1)] == [True, False]
    directed = _read(tmp_path, **TYPED, edges_are="directed")
    assert directed.relations is not None
    assert not any(one.symmetric for one in directed.relations.relations)
    (tmp_path / "again.toml").write_text(peers.to_toml())
    again = read_peers(tmp_path / "again.toml")
    assert (again.relations, again.type_widths) == (peers.relations, peers.type_widths)
    assert again.partitioning == peers.partitioning


def test_the_order_of_types_and_relations_is_agreed_on(tmp_path: Path) -> None:
    digests = {_read(tmp_path, **TYPED).partitioning}
    for key in ("types", "relations"):
        turned = {**TYPED, key: TYPED[key][::-1]}
        digests.add(_read(tmp_path, **turned).partitioning)
    wider = [{"name": "user", "features": 4}, TYPED["types"][1]]
    digests.add(_read(tmp_path, **{**TYPED, "types": wider}).partitioning)
    digests.add(_read(tmp_path, **{**TYPED, "labelled": "item"}).partitioning)
    digests.add(_read(tmp_path, **{**TYPED, "labelled": None}).partitioning)
    digests.add(_read(tmp_path, **TYPED, edges_are="directed").partitioning)
    assert len(digests) == 7


def test_a_graph_without_labels_is_agreed_on(tmp_path: Path) -> None:
    peers = _read(tmp_path, **{**TYPED, "labelled": None})
    assert peers.relations is not None
    assert peers.relations.with_labels == ()
    (tmp_path / "again.toml").write_text(peers.to_toml())
    assert read_peers(tmp_path / "again.toml").relations == peers.relations


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"features": 3}, "features: got 3; expected none with types, of which each says its own"),
        ({"edge-features": 2}, "edge-features: got 2; expected none with types"),
        ({"sparse-features": False}, "sparse-features: got False; expected true, since types"),
        ({"relations": None}, "relations: missing; expected partitioning, "),
        ({"types": []}, "types: got []; expected tables [[types]] with name, features"),
        ({"types": [{"name": "user"}]}, "types: got {'name': 'user'}; expected tables [[types]]"),
        ({"types": [{"name": 1, "features": 1}]}, "types: name: got 1; expected a text"),
        (
            {"types": [{"name": "user", "features": "3"}]},
            "types: features: got '3'; expected a whole number",
        ),
        (
            {"types": [{"name": "user", "features": -1}, TYPED["types"][1]]},
            "types: user: features: got -1; expected how many there are, 0 for none",
        ),
        (
            {"types": [*TYPED["types"], TYPED["types"][0]]},
            "types: got 3 types; expected 1 to 100 of different names",
        ),
        ({"labelled": "shop"}, "labelled: got 'shop'; expected one of the types user, item"),
        (
            {"relations": [{"source": "user", "name": "visits", "target": "shop"}]},
            "relations: visits: target: got 'shop'; expected one of the types user, item",
        ),
        (
            {"relations": [TYPED["relations"][0]] * 2},
            "types: two relations of the same types have one name",
        ),
        ({"relations": "buys"}, "relations: got 'buys'; expected tables [[relations]] with source"),
        (
            {"types": [{"name": "a/b", "features": 1}], "labelled": "a/b"},
            "relations: buys: source: got 'user'; expected one of the types a/b",
        ),
    ],
)
def test_types_that_are_refused(tmp_path: Path, changes: dict[str, Any], told: str) -> None:
    assert _refused(tmp_path, **{**TYPED, **changes}).startswith(told)
