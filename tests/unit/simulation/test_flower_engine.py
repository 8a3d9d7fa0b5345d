"""What the engine decides before it starts anything."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from retexo_fl.errors import ConfigurationError
from retexo_fl.simulation import flower_engine
from retexo_fl.simulation.flower_bundle import BundleApps, finding_modules
from retexo_fl.simulation.flower_engine import run_flower_simulation


def test_temporary_place_is_the_users_if_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/scratch/of/users/temp")
    assert flower_engine._temporary_place() == "/scratch/of/users/temp"


def test_temporary_place_is_short_enough_for_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/scratch/of/users/tempo")
    assert flower_engine._temporary_place() == "/tmp"  # noqa: S108


def test_federation_config_starts_no_more_actors_than_clients() -> None:
    assert "num-supernodes=1 " in flower_engine._federation_config(1)
    assert "init-args-num-cpus=1 " in flower_engine._federation_config(1)
    cpus = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count()
    assert f"init-args-num-cpus={cpus} " in flower_engine._federation_config(100_000)


def test_environment_keeps_the_users_flower_and_ray_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLWR_HOME", "/elsewhere")
    monkeypatch.setenv("RAY_ADDRESS", "203.0.113.1:6379")
    monkeypatch.setenv("PATH", "/user/bin")
    monkeypatch.setenv("no_proxy", "example.org")
    environment = flower_engine._environment(
        tmp_path,
        Path("/programs"),
        {"RAY_BACKEND_LOG_LEVEL": "debug", "FLWR_TELEMETRY_ENABLED": "1"},
    )
    assert environment["FLWR_HOME"] == str(tmp_path / "home")
    assert "RAY_ADDRESS" not in environment
    assert environment["RAY_BACKEND_LOG_LEVEL"] == "debug"
    assert environment["FLWR_TELEMETRY_ENABLED"] == "1"
    assert environment["FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"] == "1"
    assert environment["PATH"] == "/programs:/user/bin"
    assert environment["no_proxy"] == "example.org,127.0.0.1,localhost"


def test_a_cluster_that_is_there_keeps_what_is_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray refuses a number of CPUs there; its certificates are named by variables."""
    assert "num-cpus=1 init-args-logging" in flower_engine._federation_config(4, "head:6379")
    monkeypatch.setenv("FLWR_HOME", "/elsewhere")
    monkeypatch.setenv("RAY_ADDRESS", "203.0.113.1:6379")
    monkeypatch.setenv("RAY_USE_TLS", "1")
    environment = flower_engine._environment(
        tmp_path, Path("/programs"), {}, ray_address="head:6379"
    )
    assert environment["RAY_ADDRESS"] == "head:6379"
    assert environment["RAY_USE_TLS"] == "1"
    assert environment["FLWR_HOME"] == str(tmp_path / "home")
    # Its nodes are reached at their own addresses; a folder of the run's would hide them.
    assert not {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "RAY_TMPDIR"} & environment.keys()


def test_modules_are_found_where_this_process_finds_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind all others, so that no file of a user replaces one of Python or of Flower."""
    (tmp_path / "here").mkdir()
    (tmp_path / "script").mkdir()
    for name in ("here/own_layer.py", "here/queue.py", "script/beside_it.py"):
        (tmp_path / name).write_text("raise ImportError" if "queue" in name else "")
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "script"), *sys.path, "", "/nowhere"])
    places = flower_engine._own_places()
    assert {str(tmp_path / "script"), str(tmp_path / "here")} <= {*places}
    assert not [place for place in places if "site-packages" in place or place == "/nowhere"]
    apps = finding_modules(BundleApps(), places)
    monkeypatch.chdir("/")
    for source in (apps.server, apps.client):
        code = f"{source}import queue, own_layer, beside_it; queue.Queue; app"
        subprocess.run([sys.executable, "-c", code], check=True, timeout=100)


def test_run_flower_simulation_without_ray_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(ConfigurationError, match=r"pip install 'flwr\[simulation\]'"):
        run_flower_simulation({}, num_clients=1, tick=lambda: None)
    assert list(tmp_path.iterdir()) == []


def test_run_flower_simulation_refuses_bad_value_before_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("ray", reason="the extra 'sim' is not installed")
    ticks = []
    with pytest.raises(ConfigurationError, match="seed: got inf"):
        run_flower_simulation({"seed": float("inf")}, num_clients=1, tick=lambda: ticks.append(1))
    assert ticks == []
