"""A ServerApp that trains one stage after the other, and does as it likes in between."""

from __future__ import annotations

import numpy as np
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from retexo_fl.config import make_config
from retexo_fl.federation.strategy import LazyMessagePassing

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train all stages, write their weights to the file that ``out`` names, and test."""
    config = make_config(dict(context.run_config))
    strategy = LazyMessagePassing(config)
    stages = [strategy.start(grid=grid) for _ in range(strategy.stages)]
    np.savez(config.out, *(result.arrays["weights"].numpy() for result in stages))
    print(f"test: {strategy.test(grid)}, bytes: {strategy.ledger.sum()}")
