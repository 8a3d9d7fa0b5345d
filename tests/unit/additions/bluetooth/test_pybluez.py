"""What is refused before PyBluez is asked."""

from __future__ import annotations

import asyncio

import pytest

from retexo_fl.additions.bluetooth.pybluez import discover
from retexo_fl.errors import ChannelUnavailable


@pytest.mark.parametrize("adapter", ["00:AA:01:00:00:00", "hci", "first"])
def test_an_adapter_is_not_silently_another_one(adapter: str) -> None:
    with pytest.raises(ChannelUnavailable, match=f"^adapter {adapter}: .* as hci0$"):
        asyncio.run(discover(adapter, 1.0))
