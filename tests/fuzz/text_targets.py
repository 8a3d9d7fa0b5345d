"""Texts that people and other clients hand over: rosters, certificates, settings, addresses."""

from __future__ import annotations

import json
import random
import ssl
import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import tomli_w

from retexo_fl.additions.kernel_path.endpoint.records import parse_endpoint
from retexo_fl.agent.settings import read_settings
from retexo_fl.channels.addresses import parse_bluetooth, parse_datagram, parse_tcp
from retexo_fl.channels.federation import Federation
from retexo_fl.channels.identity import Identity, client_of, make_identity, parse_certificate
from retexo_fl.channels.owner_words import Release
from retexo_fl.channels.roster import Member, Roster
from retexo_fl.config import config_values, make_config
from retexo_fl.config.file import read_config_file
from retexo_fl.errors import InputError
from retexo_fl.graph.parts.peers import peers_of, read_peers
from retexo_fl.graph.recipes import (
    TableColumns,
    fit_recipe,
    merge_columns,
    read_recipe,
    read_summary,
)
from retexo_fl.graph.sources.synthetic import is_synthetic, parse_synthetic
from retexo_fl.server_address import host_and_port
from retexo_fl.simulation.links import read_links
from tests.fuzz.mutation import with_odd_value
from tests.fuzz.target import Target
from tests.support.loopback import make_members
from tests.support.owners import agreed
from tests.unit.graph.graphs import small_parts

_AGENT = b"""partition = "part"
state = "state"
socket = "agent.sock"
key = "key.pem"
certificate = "certificate.pem"
roster = "roster.toml"
listen = ["tcp://0.0.0.0:7411"]
addresses = ["tcp://10.0.0.1:7411"]
superlink = "10.0.0.9:9092"
meter = "127.0.0.1:9093"
look-every-s = 5.0
introductions = false
devices = "cpu:2"
"""
_LINKS = b"""default = "rate:10mbit/delay:50ms/loss:0.01"
server = "4g"
client-1 = "wan-50ms"
"0>2" = "bluetooth"
"""
_RECIPE = b"""version = 1
key-column = "account"
label-column = "fraud"
classes = ["no", "yes"]

[[numbers]]
column = "age"
logarithm = false
mean = 40.5
deviation = 10.25
missing = 0.0
indicator = true

[[categories]]
column = "country"
values = ["AT", "DE"]
indicator = false
"""
_SUMMARY = b"""{"summary-version": 1, "key-column": "account", "label-column": "fraud", "rows": 30,
"label": {"numbers": false, "texts": ["no", "yes"]}, "columns": {"country": {"empty": 3, "words":
{"NA": 10}, "texts": {"DE": 17}}, "name": {"empty": 0, "too-many-texts": true}, "age": {"empty": 2,
"numbers": {"count": 28, "sum": "2269/2", "sum-of-squares": "196000/3"},
"logarithms": {"count": 28, "sum": "105", "sum-of-squares": "400"}}}}"""
_COLUMNS = b"""{"columns-version": 1, "key-column": "account", "label-column": "fraud",
"label": {"numbers": false, "texts": ["no", "yes"]}, "columns": {"country": {"kind": "texts",
"texts": ["DE", "AT"]}, "name": {"kind": "too-many-texts"}, "age": {"kind": "numbers"}}}"""
_PLACES = (
    *(b"tcp://10.0.0.1:7411", b"tcp://[::1]:7411", b"udp://10.0.0.1:7412", b"10.0.0.1:7413"),
    *(b"bluetooth://AA:BB:CC:DD:EE:FF/7", b"bluetooth://any", b"[::1]:9092", b"host.name:80"),
)


def text_targets(folder: Path) -> list[Target]:
    """Return the parsers of texts.

    Args:
        folder: New; of the files that are read.
    """
    return [*_key_targets(folder), *_setting_targets(folder), *_word_targets()]


def of_file(path: Path, read: Callable[[Path], object]) -> Callable[[bytes], object]:
    """Return what reads an input as the content of a file."""

    def read_input(data: bytes) -> object:
        path.write_bytes(data)
        return read(path)

    return read_input


def _odd_toml(seed: bytes) -> Callable[[random.Random], bytes]:
    """Return what makes TOML with something odd in it."""
    values = tomllib.loads(seed.decode())

    def made(rng: random.Random) -> bytes:
        while True:
            try:
                return tomli_w.dumps(with_odd_value(rng, values)).encode("utf-8", "replace")
            except (AttributeError, TypeError, ValueError):
                continue  # TOML has no such value: no null, no text by itself.

    return made


def _text(read: Callable[[str], object]) -> Callable[[bytes], object]:
    return lambda data: read(data.decode("utf-8", "replace"))


def _key_targets(folder: Path) -> list[Target]:
    made = [make_identity(folder / f"key-{client}", client) for client in (0, 1)]
    members = [
        Member(client=one.client, certificate_pem=one.certificate_pem, addresses=(address,))
        for one, address in zip(made, ("tcp://10.0.0.1:7411", "relay:"), strict=True)
    ]
    pem = made[0].certificate_pem
    key = made[0].key_path
    federation = _federation()

    def read_der(data: bytes) -> None:
        client_of(parse_certificate(ssl.DER_cert_to_PEM_cert(data), "c"), "c")

    def read_key(path: Path) -> None:
        Identity.load(path, made[0].certificate_path)

    der = Target(
        name="certificate",
        group="texts",
        seeds=[ssl.PEM_cert_to_DER_cert(one.certificate_pem) for one in made],
        read=read_der,
        cases=33_300,
    )
    return [
        der,
        replace(
            der,
            name="certificate-text",
            seeds=[pem.encode()],
            read=lambda data: parse_certificate(data.decode("latin-1"), "c"),
            cases=16_600,
        ),
        replace(
            der, name="key", seeds=[key.read_bytes()], read=of_file(key, read_key), cases=6_600
        ),
        replace(
            der,
            name="roster",
            seeds=[Roster.of(members).text().encode()],
            made=_odd_toml(Roster.of(members).text().encode()),
            read=of_file(folder / "roster.toml", Roster.read),
            cases=3_300,
        ),
        replace(
            der,
            name="federation",
            seeds=[federation],
            made=_odd_toml(federation),
            read=of_file(folder / "federation.toml", _agreed_in),
            cases=2_000,
        ),
    ]


def _federation() -> bytes:
    """Return a file that three owners signed, after another that a fourth had signed with them."""
    with TemporaryDirectory() as folder:
        identities, roster = make_members(Path(folder), 4, ["relay:"] * 4)
        first = agreed(roster, identities, releases=())
        release = Release.sign(identities[3], first.brought[3].part, 0)
        left = Roster.of(list(roster.members.values())[:3])
        later = agreed(left, identities[:3], releases=[release], former=first)
        return later.text().encode()


def _agreed_in(path: Path) -> None:
    federation = Federation.read(path)
    if federation is not None:
        _ = federation.agreement


def _setting_targets(folder: Path) -> list[Target]:
    config = make_config({"clients": 2, "model": "gcn", "out": "runs/x"})
    written = tomli_w.dumps(config_values(config)).encode()
    peers = peers_of(small_parts()).to_toml().encode()
    settings = Target(
        name="agent-settings",
        group="texts",
        seeds=[_AGENT],
        made=_odd_toml(_AGENT),
        read=of_file(folder / "agent.toml", read_settings),
        cases=6_600,
    )
    return [
        settings,
        replace(
            settings,
            name="configuration",
            seeds=[written],
            made=_odd_toml(written),
            read=of_file(folder / "config.toml", lambda path: make_config(read_config_file(path))),
            cases=2_000,
        ),
        replace(
            settings,
            name="peers",
            seeds=[peers],
            made=_odd_toml(peers),
            read=of_file(folder / "peers.toml", read_peers),
            cases=6_600,
        ),
        replace(
            settings,
            name="feature-recipe",
            seeds=[_RECIPE],
            made=_odd_toml(_RECIPE),
            read=of_file(folder / "recipe.toml", read_recipe),
            cases=6_600,
        ),
        replace(
            settings,
            name="feature-summary",
            seeds=[_SUMMARY],
            made=lambda rng: json.dumps(with_odd_value(rng, json.loads(_SUMMARY))).encode(),
            read=of_file(folder / "summary.json", lambda path: fit_recipe(read_summary(path))),
            cases=6_600,
        ),
        replace(
            settings,
            name="feature-columns",
            seeds=[_COLUMNS],
            made=lambda rng: json.dumps(with_odd_value(rng, json.loads(_COLUMNS))).encode(),
            read=lambda content: merge_columns([TableColumns.parse(content, folder)]),
            cases=3_300,
        ),
        replace(
            settings,
            name="links",
            seeds=[_LINKS],
            made=_odd_toml(_LINKS),
            read=of_file(folder / "links.toml", lambda path: read_links(str(path), clients=3)),
            cases=10_000,
        ),
    ]


def _read_any_address(text: str) -> None:
    """Have each reader of addresses look at it; what one refuses is another's."""
    readers: tuple[Callable[[str], object], ...] = (
        *(parse_tcp, parse_datagram, parse_bluetooth, parse_endpoint),
        lambda given: host_and_port(given, "superlink"),
    )
    for read in readers:
        try:
            read(text)
        except Exception as error:
            if (
                not isinstance(error, InputError)
                and type(error).__module__ != InputError.__module__
            ):
                raise


def _read_synthetic(text: str) -> None:
    if is_synthetic(text):
        parse_synthetic(text)


def _word_targets() -> list[Target]:
    return [
        Target(
            name="addresses",
            group="texts",
            seeds=_PLACES,
            read=_text(_read_any_address),
            cases=66_600,
        ),
        Target(
            name="synthetic",
            group="texts",
            seeds=[b"synthetic:nodes=20000,homophily=0.6,seed=3", b"synthetic:reddit"],
            read=_text(_read_synthetic),
            cases=66_600,
        ),
    ]
