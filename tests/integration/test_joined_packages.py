"""A package that is installed joins a transport or a command by an entry point."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from retexo_fl.agent.settings import AgentSettings
from retexo_fl.agent.transports import own_transports
from retexo_fl.cli import _imported
from retexo_fl.errors import ConfigurationError, PluginError
from tests.support.cli import CommandLine

MODULE = """
import typer

from retexo_fl.channels.transports.tcp import TcpTransport


class Pigeon(TcpTransport):
    pass


def add_to(app):
    app.command("coo")(coo)


def coo(times: int = 1):
    typer.echo("coo " * times)
"""
ENTRY_POINTS = """
[retexo_fl.transports]
x-pigeon = pigeons:Pigeon
x-broken = pigeons

[retexo_fl.commands]
coo = pigeons:add_to
crow = pigeons:add_to
run = pigeons:no_such_thing
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Write what pip would install of a package."""
    (tmp_path / "pigeons.py").write_text(MODULE)
    described = tmp_path / "pigeons-1.0.dist-info"
    described.mkdir()
    (described / "METADATA").write_text("Metadata-Version: 2.1\nName: pigeons\nVersion: 1.0\n")
    (described / "entry_points.txt").write_text(ENTRY_POINTS)
    _imported.cache_clear()
    return tmp_path


@pytest.fixture
def installed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(folder))
    return folder


def _settings(*listen: str, transports: tuple[str, ...] = ()) -> AgentSettings:
    places = dict.fromkeys(("partition", "state", "socket", "key", "certificate", "roster"), "x")
    return AgentSettings(**places, listen=listen, transports=transports)  # type: ignore[arg-type]


@pytest.mark.usefixtures("installed")
def test_an_agent_listens_at_the_addresses_of_a_package() -> None:
    (brought,) = own_transports(_settings("tcp://0.0.0.0:7411", "x-pigeon:roof")).items()
    assert (brought[0], type(brought[1]).__name__) == ("x-pigeon", "Pigeon")
    named = ("x-pigeon=retexo_fl.channels.transports.tcp:TcpTransport",)
    made = own_transports(_settings("x-pigeon:roof", transports=named))["x-pigeon"]
    assert type(made).__name__ == "TcpTransport", "what the owner names wins"
    assert own_transports(_settings("tcp://0.0.0.0:7411")) == {}


@pytest.mark.usefixtures("installed")
def test_a_transport_that_no_package_brings_or_one_brings_wrongly_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="x-raven:tower: no such transport"):
        _settings("x-raven:tower")
    with pytest.raises(PluginError, match="^pigeons: .* x-broken of .*; expected module:attribute"):
        _settings("x-broken:roof")


@pytest.mark.usefixtures("installed")
def test_a_command_of_a_package_is_one_of_retexo(capsys: pytest.CaptureFixture[str]) -> None:
    retexo = CommandLine(capsys)
    assert "coo coo" in retexo.done("coo", "--times", "2")
    assert "'crow'" in retexo.refused("crow")
    assert "cooo: unknown command" in retexo.refused("cooo")
    # A name of ours is ours, whoever joins one.
    assert "Train" in retexo.done("run", "--help")


def test_nothing_is_installed_where_a_command_is_run(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    for place in ("", str(folder), "."):
        monkeypatch.setattr(sys, "path", [place, *sys.path])
        with pytest.raises(ConfigurationError, match="no such transport"):
            _settings("x-pigeon:roof")
        assert "coo: unknown command" in CommandLine(capsys).refused("coo")
