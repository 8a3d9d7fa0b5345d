from __future__ import annotations

import re
from fractions import Fraction
from pathlib import Path

import pytest

from retexo_fl.config import LINK_PROFILES, LINKS, make_config
from retexo_fl.errors import ConfigurationError
from retexo_fl.ledger import SERVER
from retexo_fl.run_log.result import Line
from retexo_fl.simulation.links import PROFILES, Link, parse_link, read_links
from tests.support.commands import ROOT


def test_literals_are_read_without_rounding() -> None:
    assert parse_link("rate:10mbit/delay:50ms/loss:0.01") == Link(
        rate_bit_s=Fraction(10_000_000), delay_s=Fraction(1, 20), loss=0.01
    )
    assert parse_link("loss:.5/rate:1.5kbit") == Link(rate_bit_s=Fraction(1500), loss=0.5)
    assert parse_link("delay:0.1us") == Link(delay_s=Fraction(1, 10_000_000))
    assert parse_link("rate:2gbit") == Link(rate_bit_s=Fraction(2_000_000_000))
    assert parse_link("delay:0s/loss:0") == Link() == parse_link("ideal")


def test_profiles_are_what_is_documented() -> None:
    assert tuple(PROFILES) == LINK_PROFILES
    for delay_ms in (50, 100, 200):
        assert parse_link(f"wan-{delay_ms}ms") == parse_link(f"delay:{delay_ms}ms")
    assert parse_link("4g") == parse_link("rate:13.6mbit/delay:26.55ms")
    assert parse_link("bluetooth") == parse_link("rate:1306.88kbit/delay:25ms")


def test_documented_profiles_and_file_are_the_real_ones(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "links.md").read_text(encoding="utf-8")
    named = {name for row in text.splitlines() if row.startswith("| `") for name in names_in(row)}
    assert set(PROFILES) <= named
    (block,) = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
    assert set(read_links(write(tmp_path, block), clients=4).lines) == {
        *("default", "server", "client-2", "0-3", "2>server")
    }


def names_in(row: str) -> list[str]:
    return re.findall(r"`([^`]+)`", row.split("|")[1])


@pytest.mark.parametrize(
    "text",
    [
        *("", "5g", "Ideal", "ideal ", "4g/loss:0.1", "rate:10", "rate:0mbit", "rate:0.0bit"),
        *("rate:-1bit", "rate:1mbit/rate:2mbit", "delay:5", "delay:-1ms", "delay:1h", "loss:1"),
        *("loss:1.0", "loss:-0.1", "loss:1e-3", "loss:nan", "rate:inf", "/", "rate:1bit/"),
        *("rate:1bit/delay:1s/loss:0/loss:0", "rate:1e6bit", "module:attribute", "links.txt"),
        *("a\nb.toml", "\x1b.toml", ".toml", "rate:\u0661mbit"),
    ],
)
def test_bad_texts_are_refused_by_the_configuration(text: str) -> None:
    assert not LINKS.allows(text)
    with pytest.raises(ConfigurationError, match="^links: got .*expected one of ideal, ") as caught:
        make_config({"links": text})
    assert "\n" not in str(caught.value)


def test_only_the_inline_engine_models_links() -> None:
    with pytest.raises(ConfigurationError, match="links: '4g' cannot be modelled by engine flower"):
        make_config({"links": "4g", "engine": "flower"})
    assert make_config({"links": "ideal", "engine": "flower"}).links == "ideal"


def write(folder: Path, text: str) -> str:
    path = folder / "links.toml"
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_the_line_that_says_most_decides(tmp_path: Path) -> None:
    text = """
        default = "delay:1s"
        server = "delay:2s"
        client-2 = "delay:3s"
        client-3 = "rate:1mbit/delay:1ms/loss:0.5"
        "0-2" = "delay:4s"
        "server-1" = "delay:5s"
        "2>server" = "delay:6s"
        "1>0" = "delay:7s"
        "2>0" = "delay:8s"
        client-5 = "rate:2mbit"
    """
    links = read_links(write(tmp_path, text), clients=6)

    def delay_s(sender: int, receiver: int) -> Fraction:
        return links.between(sender, receiver).delay_s

    assert delay_s(0, 1) == delay_s(4, 0) == 1
    assert delay_s(0, SERVER) == delay_s(SERVER, 4) == 2
    assert delay_s(SERVER, 2) == delay_s(2, 1) == delay_s(4, 2) == 3
    assert delay_s(0, 2) == 4
    assert delay_s(2, 0) == 8
    assert delay_s(SERVER, 1) == delay_s(1, SERVER) == 5
    assert delay_s(2, SERVER) == 6
    assert delay_s(1, 0) == 7
    assert links.between(2, 3) == Link(
        rate_bit_s=Fraction(1_000_000), delay_s=Fraction(3), loss=0.5
    )
    assert links.between(5, 3).rate_bit_s == links.between(3, 5).rate_bit_s == 1_000_000
    assert links.facts()["client-3"] == Line(rate_bit_s=1e6, delay_s=0.001, loss=0.5)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "default: missing; expected"),
        ('server = "4g"', "default: missing"),
        ("default = 3", "default: got 3; expected one of ideal, "),
        ('default = "5g"', "default: got '5g'; expected one of ideal, "),
        ('default = "other.toml"', "default: got 'other.toml'; expected one of ideal, "),
        ('[default]\nrate = "1mbit"', "default: got {'rate': '1mbit'}; expected one of ideal, "),
        ('default = "4g"\nclient-5 = "4g"', "client-5: there is no client 5; expected 0 to 4"),
        ('default = "4g"\n"0>9" = "4g"', "0>9: there is no client 9; expected 0 to 4"),
        ('default = "4g"\n"3-3" = "4g"', "3-3: not a link; expected two different ends"),
        ('default = "4g"\n"3>3" = "4g"', "3>3: not a link; expected two different ends"),
        ('default = "4g"\nclient-02 = "4g"', "client-02: not a link; expected default, server, "),
        ('default = "4g"\nuplink = "4g"', "uplink: not a link; expected default, server, "),
        (
            'default = "4g"\n"0-1" = "4g"\n"1-0" = "ideal"',
            "1-0: both ways are already set by 0-1",
        ),
        ("default =", "not a TOML file (Invalid value (at end of document))"),
    ],
)
def test_bad_files_are_named_with_their_line(tmp_path: Path, text: str, expected: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(ConfigurationError) as caught:
        read_links(path, clients=5)
    assert str(caught.value).startswith(f"links: {path}: {expected}")
    assert "\n" not in str(caught.value)


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    (tmp_path / "folder.toml").mkdir()
    (tmp_path / "bytes.toml").write_bytes(b"default = '\xff'")
    for name, reason in (
        ("absent.toml", r"cannot be read \(No such file"),
        ("folder.toml", r"cannot be read \(Is a directory"),
        ("bytes.toml", r"not a TOML file \("),
    ):
        with pytest.raises(ConfigurationError, match=rf"^links: .*{name}: {reason}"):
            read_links(str(tmp_path / name), clients=2)
