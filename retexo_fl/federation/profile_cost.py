"""What leaving lean training costs where the graph is with the clients: by their hellos."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from retexo_fl.client.api import HelloAnswer
from retexo_fl.config import RunConfig, config_values, make_config
from retexo_fl.config.profiles import DEFAULT_PROFILE, profile_values
from retexo_fl.errors import InputError
from retexo_fl.exchange import FIXED8
from retexo_fl.exchange.levels import level_bytes
from retexo_fl.masking.agreement import USES
from retexo_fl.methods.forecasts import LAZY, forecast_of
from retexo_fl.relations import relations_of
from retexo_fl.run_log.profile import ChosenProfile
from retexo_fl.training.messages import training_messages
from retexo_fl.training.stage_model import ModelShape
from retexo_fl.training.volume import column_bits


def with_costs(
    profile: ChosenProfile,
    config: RunConfig,
    answers: Sequence[HelloAnswer],
    vectors: Sequence[int],
) -> ChosenProfile:
    """Return a profile with what it costs, where it is another than lean and nobody has counted.

    Rows count as dense: clients do not say how many of their values are zero.

    Args:
        profile: As it was chosen.
        config: Of the run.
        answers: The hello of each client.
        vectors: How many all send in exchanges (:func:`.total_vectors`).
    """
    is_counted = profile.payload_at_most is not None
    if is_counted or not forecast_of(config).profiles or profile.name == DEFAULT_PROFILE:
        return profile
    values = config_values(config)
    values |= profile_values(DEFAULT_PROFILE, values)
    try:
        lean = _at_most(make_config(values), answers, vectors)
    except InputError:
        lean = None
    payload = _at_most(config, answers, vectors)
    return replace(profile, payload_at_most=payload, lean_at_most=lean)


def _at_most(config: RunConfig, answers: Sequence[HelloAnswer], vectors: Sequence[int]) -> int:
    first = answers[0]
    shape = ModelShape.of(
        config,
        inputs=first.features,
        classes=first.classes,
        edge_features=first.edge_features,
        relations=relations_of(first.relations),
        is_structural=bool(first.structural),
    )
    # Who has nodes of a use decides who is asked.
    counts = {one.client: {use: int(one.has(use)) for use in USES} for one in answers}
    item = np.dtype(config.dtype).itemsize
    widths = [shape.exchange_width(stage) for stage in range(shape.stages)]
    every, *later = vectors
    before = vectors if later else [every] * len(widths)
    exchanged = (
        count * width * item
        if config.row_bits == 32
        # On one grid a row takes a byte less, and a frame, of one row at least, two more.
        else level_bytes(count, width, config.row_bits) + count * (config.row_codec == FIXED8)
        for count, width in zip(before, widths, strict=True)
    )
    columns = sum(
        every * shape.exchange_width(stage) * item
        if (bits := column_bits(config, shape, stage)) == 32
        else level_bytes(every, shape.exchange_width(stage), bits)
        for stage in shape.column_stages
    )
    if shape.far_types:
        columns += vectors[-1] * shape.features * item
    asked = training_messages(config, shape, counts, forecast=LAZY)
    return sum(exchanged) + columns + sum(one.payload_bytes for one in asked)
