"""The configuration of a run: its bundle's, in ``pyproject.toml``, and what it was started with.

As Flower's ``get_fused_config_from_fab`` reads it, which bounds nothing and loads more than it
needs.
"""

from __future__ import annotations

import io
import tomllib
import zipfile
from collections.abc import Iterator, Mapping
from typing import Any, Final

from retexo_fl.config import Scalar
from retexo_fl.errors import RemoteProtocolError
from retexo_fl.units import format_bytes

#: A bundle's pyproject.toml, and what a run says beside it.
MOST_CONFIG_BYTES: Final = 2**20
_NAME: Final = "pyproject.toml"


def run_config(bundle: bytes, given: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """Return a bundle's configuration with the values that a run was started with.

    Raises:
        RemoteProtocolError: The configuration is too long, packed in another way than Flower
            does, or has other values; or the run was started with a key that it does not have.
        Exception: The bundle is none.
    """
    app = tomllib.loads(_project(bundle).decode())["tool"]["flwr"]["app"]
    config = dict(_flat(app.get("config", {}), ""))
    if unknown := given.keys() - config.keys():
        raise RemoteProtocolError(f"run-config {min(unknown)!r}; expected keys of the bundle")
    return config | dict(given)


def check_size(name: str, size: int) -> None:
    """Refuse a text of a configuration that is too long."""
    if size > MOST_CONFIG_BYTES:
        raise RemoteProtocolError(
            f"{name} of more than {format_bytes(MOST_CONFIG_BYTES)}; expected at most that"
        )


def _project(bundle: bytes) -> bytes:
    """Return the project file, whatever its size is said to be in the bundle."""
    with zipfile.ZipFile(io.BytesIO(bundle)) as archive:
        entry = archive.getinfo(_NAME)
        # Others unpack a block whole.
        if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise RemoteProtocolError(
                f"a bundle with compression {entry.compress_type}; expected deflated or stored"
            )
        with archive.open(entry) as file:
            text = file.read(MOST_CONFIG_BYTES + 1)
    check_size(f"a bundle's {_NAME}", len(text))
    return text


def _flat(table: Mapping[str, Any], before: str) -> Iterator[tuple[str, Scalar]]:
    """Yield the values of a table and of the tables in it, by dotted keys."""
    for name, value in table.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{before}{name}.")
        elif isinstance(value, Scalar):
            yield f"{before}{name}", value
        else:
            raise RemoteProtocolError(
                f"run-config {before}{name}: {type(value).__name__}; expected a text, a number, "
                "true or false"
            )
