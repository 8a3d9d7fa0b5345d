"""The bundle of one run: what Flower reads from it is what was put in."""

from __future__ import annotations

import io
import tomllib
import zipfile
from pathlib import Path

import pytest
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

from retexo_fl.errors import ConfigurationError
from retexo_fl.federation.prediction_app import PredictionTask
from retexo_fl.simulation.flower_bundle import (
    BundleApps,
    Scalar,
    prediction_apps,
    with_folders,
    write_bundle,
)

CONFIG: dict[str, Scalar] = {
    "clients": 3,
    "dropout": 0.25,
    "out": 'a "quoted"\\path = 1 # ü\n',
    "resume": "",
    "verbose": True,
}


def test_write_bundle_keeps_every_value_and_its_type(tmp_path: Path) -> None:
    bundle = write_bundle(tmp_path, CONFIG)
    written = tomllib.loads((bundle / "pyproject.toml").read_text(encoding="utf-8"))
    config = written["tool"]["flwr"]["app"]["config"]
    assert config == CONFIG
    assert {key: type(value) for key, value in config.items()} == {
        key: type(value) for key, value in CONFIG.items()
    }


def test_write_bundle_names_a_directory_that_flower_accepts(tmp_path: Path) -> None:
    assert write_bundle(tmp_path, {}) == tmp_path / "retexo-fl"


# Flower's command line uses what the newest click calls deprecated.
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_write_bundle_packs_components_only(tmp_path: Path) -> None:
    from flwr.cli.build import build_fab_from_disk
    from flwr.common.config import get_fab_config

    bundle = write_bundle(tmp_path, CONFIG)
    packed = build_fab_from_disk(bundle)
    with zipfile.ZipFile(io.BytesIO(packed)) as archive:
        names = {name for name in archive.namelist() if not name.startswith(".info")}
    assert names == {
        "pyproject.toml",
        "retexo_bundle_server/__init__.py",
        "retexo_bundle_server/app.py",
        "retexo_bundle_client/__init__.py",
        "retexo_bundle_client/app.py",
    }
    assert get_fab_config(packed)["tool"]["flwr"]["app"]["config"] == CONFIG


def test_write_bundle_default_components_are_one_line_each(tmp_path: Path) -> None:
    bundle = write_bundle(tmp_path, {})
    assert (bundle / "retexo_bundle_server" / "app.py").read_text(encoding="utf-8") == (
        "from retexo_fl.federation import make_server_app; app = make_server_app()\n"
    )
    assert (bundle / "retexo_bundle_client" / "app.py").read_text(encoding="utf-8") == (
        "from retexo_fl.federation import make_client_app; app = make_client_app()\n"
    )


def test_write_bundle_takes_other_components(tmp_path: Path) -> None:
    bundle = write_bundle(tmp_path, {}, apps=BundleApps(server="app = 1\n", client="app = 2\n"))
    assert (bundle / "retexo_bundle_server" / "app.py").read_text(encoding="utf-8") == "app = 1\n"
    assert (bundle / "retexo_bundle_client" / "app.py").read_text(encoding="utf-8") == "app = 2\n"


def test_prediction_apps_are_components_with_any_paths() -> None:
    odd = "a \"quoted\" 'path'\\ # ü\n\udcff"
    apps = prediction_apps(PredictionTask(run=odd, folder=odd, form="csv"))
    apps = with_folders(apps, predictions=Path(odd))
    for source, kind in ((apps.server, ServerApp), (apps.client, ClientApp)):
        names: dict[str, object] = {}
        exec(compile(source.encode(), "app.py", "exec"), names)  # noqa: S102 - our own source
        assert isinstance(names["app"], kind)
        assert source.count(repr(odd)) == (2 if kind is ServerApp else 1)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ([1], "out: got .1. of type list"),
        (None, "out: got None of type NoneType"),
        (float("nan"), "out: got nan; expected a finite number"),
        (2**63, "expected a whole number of 64 bits"),
    ],
)
def test_write_bundle_refuses_what_flower_cannot_carry(
    tmp_path: Path, value: Scalar, words: str
) -> None:
    with pytest.raises(ConfigurationError, match=words):
        write_bundle(tmp_path, {"out": value})
    assert list(tmp_path.iterdir()) == []
