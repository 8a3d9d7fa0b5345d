"""A run's configuration is read of its bundle as Flower reads it."""

from __future__ import annotations

import io
import zipfile
from typing import Any

import pytest
from flwr.common.config import get_fused_config_from_fab
from flwr.common.serde import run_from_proto, user_config_to_proto
from flwr.proto.run_pb2 import Run

from retexo_fl.errors import RemoteProtocolError
from retexo_fl.federation.bundle_config import run_config
from tests.support.bundle_projects import bundle_project

_CONFIG = """
[tool.flwr.app.config]
rounds = 3
dropout = 0.5
model = "sage"
relay = false
[tool.flwr.app.config.deep.er]
key = "é"
"""


def bundle_of(config: str) -> bytes:
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("pyproject.toml", bundle_project(config=config))
    return written.getvalue()


@pytest.mark.parametrize("config", ["", _CONFIG])
def test_a_configuration_is_what_flower_reads(config: str) -> None:
    given: dict[str, Any] = {"rounds": 5, "deep.er.key": "", "relay": True} if config else {}
    bundle, run = bundle_of(config), Run(override_config=user_config_to_proto(given))
    wanted = get_fused_config_from_fab(bundle, run_from_proto(run))
    found = run_config(bundle, given)
    assert found == wanted
    assert {key: type(value) for key, value in found.items()} == {
        key: type(value) for key, value in wanted.items()
    }


@pytest.mark.parametrize(
    ("config", "given", "expected"),
    [
        (_CONFIG, {"other": 1}, "run-config 'other'; expected keys of the bundle"),
        ("[tool.flwr.app.config]\nrounds = [1]", {}, "run-config rounds: list; expected"),
        ("[tool.flwr.app.config.deep]\nday = 2020-01-01", {}, "run-config deep.day: date;"),
    ],
)
def test_other_values_are_refused_by_name(
    config: str, given: dict[str, Any], expected: str
) -> None:
    with pytest.raises(RemoteProtocolError, match=expected):
        run_config(bundle_of(config), given)
