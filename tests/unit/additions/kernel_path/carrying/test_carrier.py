"""What one exchange by datagrams raises ends that exchange, and the thread serves the others."""

from __future__ import annotations

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from retexo_fl.additions.kernel_path.carrying.carrier import Carrier, OpenExchanges
from retexo_fl.additions.kernel_path.endpoint import DatagramEndpoint
from retexo_fl.channels.depot import BlockDepot
from retexo_fl.errors import ExchangeIncomplete

FAULTY, SOUND = ("job-1", 0, b"f" * 32), ("job-1", 1, b"s" * 32)


class _Exchange:
    """Steps until one raises."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.steps = 0

    def step(self, *_: object) -> None:
        self.steps += 1
        if self.error is not None:
            raise self.error


def test_an_error_without_a_name_ends_its_exchange_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    opened = OpenExchanges()
    faulty, sound = _Exchange(ZeroDivisionError("x")), _Exchange()
    opened.outgoing[FAULTY] = cast(Any, faulty)
    opened.outgoing[SOUND] = cast(Any, sound)
    endpoint = cast(DatagramEndpoint, SimpleNamespace())
    carrier = Carrier(opened, BlockDepot(tmp_path, 0), endpoint)
    with caplog.at_level(logging.ERROR):
        carrier._step()
        carrier._step()
    assert (faulty.steps, sound.steps) == (1, 2)
    assert list(opened.failures) == [FAULTY]
    assert isinstance(opened.failures[FAULTY], ExchangeIncomplete)
    assert "stage 0: ZeroDivisionError in the agent" in str(opened.failures[FAULTY])
    (record,) = caplog.records
    assert record.exc_info is not None
