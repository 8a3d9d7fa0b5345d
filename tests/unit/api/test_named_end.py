"""What a training that ended early says can be done now."""

from __future__ import annotations

from pathlib import Path

import pytest

from retexo_fl.api.training import named_end, what_now
from retexo_fl.errors import ConfigurationError, EngineFailed, Interrupted, NotBegun


def end_with(error: BaseException, sentence: str) -> str:
    expected = (EngineFailed, ConfigurationError, Interrupted)
    with pytest.raises(expected) as caught, named_end(lambda: sentence):
        raise error
    return str(caught.value)


def test_failures_say_what_can_be_done() -> None:
    assert end_with(EngineFailed("lost"), "go on") == "lost; go on"
    assert end_with(KeyboardInterrupt(), "go on") == "interrupted; go on"


def test_nothing_is_said_of_what_never_began(tmp_path: Path) -> None:
    assert end_with(NotBegun("flwr run: no"), "a checkpoint") == "flwr run: no"
    assert end_with(ConfigurationError("rounds: no"), "a checkpoint") == "rounds: no"
    nothing = what_now(tmp_path / "run", "resume it")
    assert end_with(EngineFailed("lost"), nothing) == "lost"
    assert end_with(KeyboardInterrupt(), nothing) == "interrupted"
    (tmp_path / "run").mkdir()
    assert what_now(tmp_path / "run", "resume it") == "there is no checkpoint to resume from"
