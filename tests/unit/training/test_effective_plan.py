from __future__ import annotations

import logging
import re

import pytest

from retexo_fl.config import make_config
from retexo_fl.errors import PluginError
from retexo_fl.layers.gcn import GcnLayer
from retexo_fl.layers.named import layer_class
from retexo_fl.training.effective_plan import effective_plan, note_effective_plan


class Undeclared(GcnLayer):
    """A layer that does not say that it sums."""

    sums_messages = False


@pytest.mark.parametrize(
    ("model", "followed"),
    [
        *((name, "cover") for name in ("gcn", "sage", "gin")),
        *((name, "rows") for name in ("gat", "sage-pool", f"{__name__}:Undeclared")),
    ],
)
def test_layers_that_sum_follow_the_cover_and_others_the_rows(
    model: str, followed: str, caplog: pytest.LogCaptureFixture
) -> None:
    config = make_config({"model": model, "boundary-plan": "cover"})
    assert effective_plan(config) == followed
    assert layer_class(model).sums_messages == (followed == "cover")
    with caplog.at_level(logging.WARNING):
        note_effective_plan(config)
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == (followed == "rows")
    for line in said:
        assert re.fullmatch(f"boundary-plan: model {model} .*; .* rows, not a cover", line)


@pytest.mark.parametrize("model", ["gcn", "gat"])
def test_all_layers_follow_the_rows(model: str) -> None:
    assert effective_plan(make_config({"model": model})) == "rows"


def test_a_model_that_is_no_layer_is_refused() -> None:
    config = make_config({"model": "json:dumps", "boundary-plan": "cover"})
    with pytest.raises(PluginError, match="not a layer"):
        effective_plan(config)
