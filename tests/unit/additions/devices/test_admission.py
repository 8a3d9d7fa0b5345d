"""What an agent knows of mini-batches before it trains on them is what they are."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from retexo_fl.additions.devices.workers.plan import epoch_plan
from retexo_fl.agent.admission import admit
from retexo_fl.agent.limits import Limits
from retexo_fl.client.preparation import make_parts
from retexo_fl.config import make_config
from retexo_fl.errors import ConfigurationError


def test_fewest_is_what_the_mini_batches_of_a_training_have() -> None:
    asked = {"clients": 2, "split": "random-unstratified:0.2/0.1/0.7"}
    part = make_parts(make_config(asked))[1]
    nodes = np.flatnonzero(part.train_mask)[:180]
    mask = np.zeros_like(part.train_mask)
    mask[nodes] = True
    part = replace(part, train_mask=mask)
    limits = Limits(allow_algorithms=("drop",))
    for batch_nodes in (7, 10, 100, 179, 180, 181, 1024):
        plan = epoch_plan(nodes, None, batch_size=batch_nodes, ratios=[1.0], seed=3, epoch=2)
        fewest = min(plan.count(batch) for batch in range(plan.num_batches))
        keys = {"algorithm": "drop", "sampler": "full", "batch-nodes": batch_nodes}
        admit(keys, part, replace(limits, least_train_nodes=fewest))
        with pytest.raises(ConfigurationError, match="expected at least"):
            admit(keys, part, replace(limits, least_train_nodes=fewest + 1))
