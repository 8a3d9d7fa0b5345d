"""What a copy of this package may lack: an addition, a room that can be deleted.

The core never imports one. Where a setting, an option or a command wants it, the core asks here, by
name; where it is absent, the error names the room. It is found by the path of its module, not by an
installation's metadata: a copy of the package on ``PYTHONPATH``, and Flower's bundle, have none.
What other people's packages bring is found by entry points (:func:`retexo_fl.plugins.joined`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Final

from retexo_fl.errors import ConfigurationError

_ROOMS: Final = "retexo_fl.additions"


@dataclass(frozen=True, slots=True, kw_only=True)
class Addition:
    """A room of ``retexo_fl/additions``.

    Attributes:
        room: Its folder.
        title: What people call it.
        schemes: Of the addresses at which it connects or listens.
        settings: Keys of ``agent.toml`` that mean nothing without it.
        keys: Keys of a run that may need it, each with the values that do not.
    """

    room: str
    title: str
    schemes: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()
    keys: tuple[tuple[str, tuple[str, ...]], ...] = ()

    @property
    def is_here(self) -> bool:
        """Whether this copy of the package has it."""
        try:
            found = find_spec(f"{_ROOMS}.{self.room}")
        except ModuleNotFoundError:
            # Nor has it any other.
            return False
        # Compiled files that outlive their room make no module of its folder.
        return found is not None and found.origin is not None

    def serves(self, address: str) -> bool:
        """Return whether an address is one of its own."""
        return address.partition(":")[0] in self.schemes

    def wanted_by(self, values: Mapping[str, object]) -> str:
        """Return the first key of a run that needs it, and its value; empty if none does.

        Args:
            values: By key; an absent one needs nothing.
        """
        wanting = (
            f"{key}: {values[key]}"
            for key, without in self.keys
            if values.get(key, without[0]) not in without
        )
        return next(wanting, "")

    def require(self, wanted: str) -> None:
        """Refuse what cannot be had without it.

        Args:
            wanted: What asks for it, as its user wrote it.

        Raises:
            ConfigurationError: This copy of the package lacks it.
        """
        if not self.is_here:
            raise ConfigurationError(
                f"{wanted}: this installation has no {self.title}; expected the folder "
                f"{_ROOMS.replace('.', '/')}/{self.room} of a complete retexo-fl"
            )

    def module(self, name: str, wanted: str) -> ModuleType:
        """Import one of its modules.

        Args:
            name: Dotted, from its folder on.
            wanted: See :meth:`require`.

        Raises:
            ConfigurationError: This copy of the package lacks the addition.
        """
        self.require(wanted)
        return import_module(f"{_ROOMS}.{self.room}.{name}")


#: Takes and sends vectors as datagrams: in user space, in the kernel, or as it can.
KERNEL_PATH: Final = Addition(
    room="kernel_path",
    title="kernel path",
    schemes=("udp", "xdp", "af-xdp", "auto"),
    settings=("datagram-memory-mib", "broadcast"),
)
#: Streams of blocks between devices that are near each other.
BLUETOOTH: Final = Addition(room="bluetooth", title="Bluetooth", schemes=("bluetooth",))
#: Mini-batches of sampled neighbours, and several devices of a client.
DEVICES: Final = Addition(
    room="devices",
    title="mini-batches and devices",
    keys=(("sampler", ("none",)), ("devices", ("cpu", "auto"))),
)
ADDITIONS: Final = (KERNEL_PATH, BLUETOOTH, DEVICES)
