"""Scripts and units beside the package: in a wheel a copy of them is in it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from retexo_fl.errors import ConfigurationError

#: Each by the path that a clone has for it; `pyproject.toml` puts the same into a wheel.
FILES: Final = (
    "server/make-certificates.sh",
    "server/register-client.sh",
    "server/retexo-superlink.service",
    "clients/install-client.sh",
    "clients/retexo-agent@.service",
    "clients/retexo-supernode@.service",
    "kubernetes/server.yaml",
    "kubernetes/client.yaml",
)
_HERE: Final = Path(__file__).resolve().parent


def shipped(name: str) -> Path:
    """Return where one of :data:`FILES` is.

    Raises:
        ConfigurationError: The installation lacks it.
    """
    for root in (_HERE / "shipped", _HERE.parents[1]):
        if (root / name).is_file():
            return root / name
    raise ConfigurationError(
        f"{name}: not found; expected an installation of retexo-fl by its wheel or its clone"
    )
