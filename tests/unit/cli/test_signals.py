from __future__ import annotations

import signal
import time
from collections.abc import Iterator

import pytest

from retexo_fl.cli import signals
from retexo_fl.cli.signals import stoppable

NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@pytest.fixture(autouse=True)
def _handlers_stay() -> Iterator[None]:
    # Under nohup, or in a shell's background, tests begin with some of them ignored.
    before = {number: signal.signal(number, signal.SIG_DFL) for number in NUMBERS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", NUMBERS)
def test_stoppable_raises_once_and_passes_over_what_follows(number: signal.Signals) -> None:
    stops = 0
    with stoppable():
        for _ in range(3):
            try:
                signal.raise_signal(number)
            except KeyboardInterrupt:
                stops += 1
    assert stops == 1


def test_stoppable_raises_again_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signals, "PATIENCE_S", 0.01)
    with stoppable():
        for _ in range(2):
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGTERM)
            time.sleep(0.02)


def test_stoppable_leaves_ignored_signals_ignored() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with stoppable():
        signal.raise_signal(signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


def test_stoppable_ignores_signals_at_the_end() -> None:
    with stoppable():
        pass
    for number in NUMBERS:
        assert signal.getsignal(number) is signal.SIG_IGN
        signal.raise_signal(number)
