from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from retexo_fl.config import RunConfig, config_values, default_values, key_infos, make_config
from retexo_fl.config.file import read_config_file
from retexo_fl.errors import ConfigurationError
from retexo_fl.methods.keys import check_algorithm

PYPROJECT = Path(__file__).resolve().parents[3] / "pyproject.toml"


def test_pyproject_declares_every_key_with_its_default() -> None:
    declared = tomllib.loads(PYPROJECT.read_text())["tool"]["flwr"]["app"]["config"]
    assert declared.pop("profile") == ""
    assert declared == default_values()
    assert {k: type(v) for k, v in declared.items()} == {
        k: type(v) for k, v in default_values().items()
    }


def test_make_config_inverts_config_values() -> None:
    config = make_config({"layers": 3, "learning-rate": 1, "model": "gcn"})
    assert config.learning_rate == 1.0
    assert make_config(config_values(config)) == config


def test_every_key_has_help() -> None:
    assert all(info.help.endswith(".") and len(info.help) >= 10 for info in key_infos().values())


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("layers", 0),
        ("layers", 2.0),
        ("layers", True),
        ("layers", "2"),
        ("hidden", 2**20),
        ("dropout", 1.0),
        ("dropout", -0.1),
        ("dropout", float("nan")),
        ("learning-rate", 0),
        ("learning-rate", float("inf")),
        ("model", "transformer"),
        ("model", "a module:name"),
        ("partitioner", "kmeans"),
        ("engine", "ray"),
        ("dtype", "float16"),
        ("seed", -1),
        ("clients", 0),
        ("rounds", None),
    ],
)
def test_make_config_names_key_and_value(key: str, value: object) -> None:
    with pytest.raises(ConfigurationError, match=f"^{key}: got .*expected") as caught:
        make_config({key: value})
    assert "\n" not in str(caught.value)


def test_make_config_suggests_nearest_key() -> None:
    with pytest.raises(ConfigurationError, match="learning-rat: unknown.*'learning-rate'"):
        make_config({"learning-rat": 0.1})


def test_make_config_refuses_field_names() -> None:
    with pytest.raises(ConfigurationError, match="learning_rate: unknown"):
        make_config({"learning_rate": 0.1})


@pytest.mark.parametrize("devices", ["", "gpu", "cpu,", "cpu:0", "cuda:x", "auto,cpu", "cpu;cuda"])
def test_devices_that_are_none_are_refused(devices: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^devices: got {devices!r}; expected auto, or"):
        RunConfig(devices=devices)


@pytest.mark.parametrize("fanouts", ["", "15,10", "0/5", "15/", "-1", "1/x"])
def test_fanouts_that_are_none_are_refused(fanouts: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^fanouts: got {fanouts!r}; expected whole"):
        RunConfig(fanouts=fanouts)


@pytest.mark.parametrize("sampler", ["neighbour", "gns"])
def test_samplers_by_layer_need_a_fanout_for_each_layer(sampler: str) -> None:
    with pytest.raises(
        ConfigurationError, match="^fanouts: '15/10' has 2 .*3 layers; expected one"
    ):
        RunConfig(algorithm="drop", sampler=sampler, layers=3)
    assert RunConfig(algorithm="drop", sampler=sampler).fanouts == "15/10"
    assert RunConfig(algorithm="drop", sampler="shadow", layers=2).layers == 2


@pytest.mark.parametrize(
    ("keys", "refused"),
    [
        ({"algorithm": "lazy", "sampler": "full"}, "sampler"),
        ({"algorithm": "standard", "sampler": "full"}, "sampler"),
        ({"algorithm": "bns", "sampler": "shadow"}, "sampler"),
        ({"algorithm": "standard", "devices": "cpu:2"}, "devices"),
        ({"algorithm": "drop", "devices": "cuda"}, "devices"),
    ],
)
def test_mini_batches_and_devices_go_with_some_algorithms(
    keys: dict[str, str], refused: str
) -> None:
    with pytest.raises(ConfigurationError, match=f"^{refused}: .*algorithm {keys['algorithm']}"):
        check_algorithm(config_values(make_config(keys)))


@pytest.mark.parametrize(
    "keys",
    [
        {"algorithm": "lazy", "devices": "cpu:2"},
        {"algorithm": "standard", "devices": "auto"},
        {"algorithm": "drop", "sampler": "full", "devices": "cuda:0,cpu"},
    ],
)
def test_mini_batches_and_devices_that_are_allowed(keys: dict[str, str]) -> None:
    check_algorithm(config_values(make_config(keys)))


def test_gat_hidden_must_be_a_multiple_of_heads() -> None:
    with pytest.raises(ConfigurationError, match="hidden: 60 .*8 heads; expected a multiple"):
        RunConfig(model="gat", hidden=60)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("rounds = ", "not a TOML file"), ("hiden = 3", "unknown.*'hidden'"), ("[a]", "unknown")],
)
def test_read_config_file_names_the_file(tmp_path: Path, text: str, expected: str) -> None:
    path = tmp_path / "keys.toml"
    path.write_text(text)
    with pytest.raises(ConfigurationError, match=f"keys.toml.*{expected}"):
        read_config_file(path)


def test_read_config_file_that_is_missing(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="no.toml: cannot be read"):
        read_config_file(tmp_path / "no.toml")
