from __future__ import annotations

import sys
from pathlib import Path

import pytest

from retexo_fl.agent.settings import read_settings
from retexo_fl.errors import ConfigurationError
from retexo_fl.server_address import host_and_port

LEAST = {
    "partition": '"part-0"',
    "state": '"state"',
    "socket": '"agent.sock"',
    "key": '"key.pem"',
    "certificate": '"certificate.pem"',
    "roster": '"roster.toml"',
}


def written(folder: Path, **changes: str | None) -> Path:
    values = {**LEAST, **changes}
    path = folder / "agent.toml"
    path.write_text("\n".join(f"{k} = {v}" for k, v in values.items() if v is not None))
    return path


def test_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    settings = read_settings(written(tmp_path, state='"/var/lib/agent"', predictions='"out"'))
    assert settings.partition == str(tmp_path / "part-0")
    assert settings.state == "/var/lib/agent"
    assert settings.predictions == str(tmp_path / "out")
    assert settings.roster == str(tmp_path / "roster.toml")
    assert (settings.listen, settings.introductions, settings.meter) == ((), False, "")


def test_an_agent_asks_a_superlink_itself_where_nothing_is_counted(tmp_path: Path) -> None:
    own = {"superlink": '"x:1"', "supernode-key": '"key"', "root-certificates": '"ca.crt"'}
    settings = read_settings(written(tmp_path, **own))
    assert settings.is_own_node
    assert settings.supernode_key == str(tmp_path / "key")
    assert settings.root_certificates == str(tmp_path / "ca.crt")
    assert read_settings(written(tmp_path, superlink='"http://x:1"')).is_own_node
    counted = {"superlink": '"x:1"', "meter": '"127.0.0.1:7412"'}
    assert not read_settings(written(tmp_path, **counted)).is_own_node


def test_what_is_given_goes_before_the_file_and_is_checked_with_it(tmp_path: Path) -> None:
    file = written(tmp_path, **{"root-certificates": '"ca.crt"'})
    settings = read_settings(file, superlink="x:1", supernode_key="/key")
    assert settings.is_own_node
    assert settings.supernode_key == "/key"
    with pytest.raises(ConfigurationError, match="root-certificates: expected none without TLS"):
        read_settings(file, superlink="x:1", insecure=True)


def test_listen_is_a_list_of_addresses(tmp_path: Path) -> None:
    settings = read_settings(written(tmp_path, listen='["tcp://0.0.0.0:7411"]'))
    assert settings.listen == ("tcp://0.0.0.0:7411",)


@pytest.mark.parametrize(("written_s", "read_s"), [("45", 45.0), ("1.5", 1.5), ("0", 0.0)])
def test_looks_are_so_many_seconds_apart(tmp_path: Path, written_s: str, read_s: float) -> None:
    assert read_settings(written(tmp_path, **{"look-every-s": written_s})).look_every_s == read_s


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"socet": '"x"'}, "socet: unknown key; .*'socket'"),
        ({"partition": None}, "partition: missing"),
        ({"key": '""'}, "key: is empty"),
        ({"state": "3"}, "state: got 3; expected a string"),
        ({"listen": '"tcp://x"'}, "listen: got 'tcp://x'; expected a list of strings"),
        ({"introductions": '"yes"'}, "introductions: got 'yes'; expected true or false"),
        ({"roster": None}, "roster: missing; expected .*introductions = true"),
        ({"socket": f'"/{"x" * 107}"'}, "socket: .* has 108 bytes; expected at most 107"),
        ({"metrics": '"9300"'}, "metrics: got '9300'; expected HOST:PORT"),
        ({"metrics": f'"/{"x" * 107}"'}, "metrics: .* has 108 bytes; expected at most 107"),
        ({"metrics": '"./agent.sock"'}, "metrics: is that of socket; expected another path"),
        ({"meter": '"127.0.0.1:7412"'}, "superlink: missing; expected .*meter"),
        ({"insecure": "true"}, "insecure: expected only beside superlink"),
        ({"supernode-key": '"key"'}, "supernode-key: expected only beside superlink"),
        (
            {"superlink": '"x:1"', "meter": '"127.0.0.1:7412"', "insecure": "true"},
            "insecure: expected only without meter",
        ),
        (
            {"superlink": '"x:1"', "supernode-key": '"key"', "insecure": "true"},
            "supernode-key: expected none without TLS",
        ),
        (
            {"superlink": '"http://x:1"', "root-certificates": '"ca.crt"'},
            "root-certificates: expected none without TLS",
        ),
        ({"superlink": '"https://x:1"', "insecure": "true"}, "insecure: expected none with https"),
        ({"superlink": '"x"', "meter": '"127.0.0.1:7412"'}, "superlink: got 'x'; expected"),
        ({"datagram-memory-mib": "0.5"}, "datagram-memory-mib: got 0.5; expected 1 to 65536"),
        ({"datagram-memory-mib": "65537"}, "datagram-memory-mib: got 65537; expected 1 to"),
        ({"broadcast": '"all"'}, "broadcast: got 'all'; expected gso or tc"),
        ({"most-rows": '"some"'}, "most-rows: got 'some'; expected one of none, class, full"),
        ({"max-epsilon": "-1"}, "max-epsilon: got -1.0; expected 0 to 100"),
        ({"max-row-epsilon": "101"}, "max-row-epsilon: got 101.0; expected 0 to 100"),
        ({"least-clients": "2"}, "least-clients: got 2; expected 3 at least"),
        ({"most-rounds": str(2**31)}, "most-rounds: got 2147483648; expected 1 to 2147483647"),
        ({"most-memory-mib": "inf"}, "most-memory-mib: got inf; expected a number from 0"),
        ({"meter": '"here"', "superlink": '"x:1"'}, "meter: got 'here'; expected HOST:PORT"),
        ({"state": "["}, "not a TOML file"),
        ({"look-every-s": '"often"'}, "look-every-s: got 'often'; expected a number"),
        ({"look-every-s": "true"}, "look-every-s: got True; expected a number"),
        ({"look-every-s": "0.5"}, "look-every-s: got 0.5; expected at least 1"),
        ({"look-every-s": "nan"}, "look-every-s: got nan; expected at least 1"),
        ({"devices": "2"}, "devices: got 2; expected a string"),
        (
            {"devices": '"gpu"'},
            "devices: got 'gpu'; expected auto.*cpu",
        ),
        ({"devices": '"cpu:0"'}, "devices: got 'cpu:0'; expected auto.*cpu"),
        ({"allow-devices": '""'}, "allow-devices: got ''; expected auto.*cpu"),
        ({"allow-plugins": '["os"]'}, "allow-plugins: got 'os'; expected .* module:attribute"),
        ({"allow-plugins": '"a:b"'}, "allow-plugins: got 'a:b'; expected a list of strings"),
        ({"allow-algorithms": '["lasy"]'}, "allow-algorithms: got 'lasy'; expected some of lazy"),
        ({"least-train-nodes": "0"}, "least-train-nodes: got 0; expected 1 to"),
        ({"least-train-nodes": "1.5"}, "least-train-nodes: got 1.5; expected a whole number"),
        ({"most-rounds": "true"}, "most-rounds: got True; expected a whole number"),
        ({"most-memory-mib": "-1"}, "most-memory-mib: got -1.0; expected a number from 0"),
        ({"most-memory-mib": "nan"}, "most-memory-mib: got nan; expected a number from 0"),
        ({"look_every_s": "30"}, "look_every_s: unknown key; .*'look-every-s'"),
    ],
)
def test_errors_name_file_and_key(
    tmp_path: Path, changes: dict[str, str | None], expected: str
) -> None:
    path = written(tmp_path, **changes)
    with pytest.raises(ConfigurationError, match=expected) as caught:
        read_settings(path)
    assert str(caught.value).startswith(str(path))


@pytest.mark.devices
@pytest.mark.parametrize("devices", ["", "auto", "cpu:2", "cuda:0,cpu"])
def test_devices_are_left_to_the_run_or_named(tmp_path: Path, devices: str) -> None:
    assert read_settings(written(tmp_path, devices=f'"{devices}"')).devices == devices
    assert read_settings(written(tmp_path)).devices == ""


def test_default_allows_lazy_training_of_ten_nodes_and_no_plugin(
    tmp_path: Path,
) -> None:
    settings = read_settings(written(tmp_path))
    assert (settings.allow_algorithms, settings.allow_plugins) == (("lazy",), ())
    assert (settings.least_train_nodes, settings.most_rounds) == (10, 1000)
    assert (settings.allow_devices, settings.most_memory_mib) == ("auto", 0.0)


def test_an_owner_says_what_runs_may_ask(tmp_path: Path) -> None:
    lines = {
        "allow-algorithms": '["lazy", "drop"]',
        "allow-plugins": '["mine.layers:Own", "mine:loss"]',
        "allow-devices": '"cuda:0,cpu:2"',
        "least-train-nodes": "1",
        "most-rounds": "200",
        "most-memory-mib": "512",
    }
    settings = read_settings(written(tmp_path, **lines))
    assert settings.allow_algorithms == ("lazy", "drop")
    assert settings.allow_plugins == ("mine.layers:Own", "mine:loss")
    assert settings.allow_devices == "cuda:0,cpu:2"
    assert (settings.least_train_nodes, settings.most_rounds) == (1, 200)
    assert settings.most_memory_mib == 512.0


def test_introductions_need_no_roster(tmp_path: Path) -> None:
    assert read_settings(written(tmp_path, roster=None, introductions="true")).roster == ""


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="agent.toml: cannot be read"):
        read_settings(tmp_path / "agent.toml")


@pytest.mark.parametrize(
    ("text", "expected"), [("a.b:1", ("a.b", 1)), ("[::1]:9092", ("::1", 9092))]
)
def test_host_and_port(text: str, expected: tuple[str, int]) -> None:
    assert host_and_port(text, "meter") == expected


@pytest.mark.parametrize("text", ["a", ":1", "a:", "a:0", "a:65536", "a:²"])
def test_host_and_port_refuses(text: str) -> None:
    with pytest.raises(ConfigurationError, match="meter: got"):
        host_and_port(text, "meter")


def test_metrics_are_served_at_a_port_or_a_path_and_need_their_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert read_settings(written(tmp_path)).metrics == ""
    path = written(tmp_path, metrics='"127.0.0.1:9300"')
    assert read_settings(path).metrics == "127.0.0.1:9300"
    inside = written(tmp_path, metrics='"./metrics.sock"')
    assert read_settings(inside).metrics == str(tmp_path / "metrics.sock")
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(ConfigurationError, match="metrics: needs .*; expected the extra 'watch'"):
        read_settings(inside)
