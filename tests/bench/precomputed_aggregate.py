"""An epoch with the aggregate computed once per stage against one that recomputes it.

Both sides train through the same :class:`LayerTrainer`; the recomputing layers differ from the
library's in nothing but the moment at which they aggregate, and aggregate by the same kernel only
the rows of the batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import torch
from scipy.sparse import csr_array

from retexo_fl.layers.aggregate import linear
from retexo_fl.layers.base import StageInput, stacked_rows
from retexo_fl.layers.dropout import KeyedDropout
from retexo_fl.layers.gcn import GcnLayer
from retexo_fl.layers.sage import SageLayer
from retexo_fl.layers.sparse import SparseRows, sparse_product
from retexo_fl.training.layer_trainer import LayerTrainer, NodeSets
from retexo_fl.training.stage_model import ModelShape, initial_weights
from tests.bench.measure import LEAST_REPEATS, Timings, interleaved
from tests.bench.outcome import Outcome, Row

_CLASSES: Final = 40
#: Exponent of the Pareto law of degrees: few nodes with many neighbours, a median of half the mean.
_DEGREE_EXPONENT: Final = 1.5
_TARGET: Final = 2.0
_SHARES: Final = {"all rows": 1.0, "10 % of rows": 0.1}
_ONCE, _EACH = "computed once", "recomputed"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Whole:
    """What is needed to aggregate any rows."""

    operator: csr_array
    rows: torch.Tensor
    hashes: np.ndarray


@dataclass(frozen=True, slots=True, kw_only=True)
class _Batch:
    """Weights of the aggregate of R rows, all source rows, and the R own rows."""

    operator: SparseRows
    sources: torch.Tensor
    own: torch.Tensor
    hashes: np.ndarray


def _whole(operator: csr_array, inputs: StageInput) -> _Whole:
    rows = stacked_rows(inputs)
    assert isinstance(rows, torch.Tensor)
    return _Whole(operator=operator, rows=rows, hashes=inputs.own_hashes)


def _batch(prepared: object, rows: np.ndarray) -> _Batch:
    assert isinstance(prepared, _Whole)
    return _Batch(
        operator=SparseRows.from_scipy(csr_array(prepared.operator[rows]), prepared.rows.dtype),
        sources=prepared.rows,
        own=prepared.rows.index_select(0, torch.from_numpy(rows)),
        hashes=prepared.hashes[rows],
    )


def _aggregate(batch: _Batch) -> torch.Tensor:
    return sparse_product(batch.operator.pattern, batch.operator.values, batch.sources)


class RecomputingGcn(GcnLayer):
    """GCN that aggregates in every step."""

    def prepare(self, inputs: StageInput) -> _Whole:  # type: ignore[override]
        """Keep the operator instead of its product."""
        return _whole(self.operator(inputs), inputs)

    def batch(self, prepared: object, rows: np.ndarray) -> _Batch:  # type: ignore[override]
        """Select rows of the operator."""
        return _batch(prepared, rows)

    def forward(self, batch: object, dropout: KeyedDropout | None) -> torch.Tensor:
        """Aggregate, then map."""
        assert isinstance(batch, _Batch)
        return linear(_aggregate(batch), batch.hashes, self.weight, dropout) + self.bias


class RecomputingSage(SageLayer):
    """GraphSAGE that aggregates in every step."""

    def prepare(self, inputs: StageInput) -> _Whole:  # type: ignore[override]
        """Keep the operator instead of its product."""
        return _whole(self.operator(inputs), inputs)

    def batch(self, prepared: object, rows: np.ndarray) -> _Batch:  # type: ignore[override]
        """Select rows of the operator."""
        return _batch(prepared, rows)

    def forward(self, batch: object, dropout: KeyedDropout | None) -> torch.Tensor:
        """Aggregate, join, then map."""
        assert isinstance(batch, _Batch)
        rows = torch.cat([batch.own, _aggregate(batch)], dim=1)
        return linear(rows, batch.hashes, self.weight, dropout) + self.bias


def run(quick: bool, data_dir: Path | None) -> Outcome:
    """Time both epochs in turn, for GCN and GraphSAGE, with all and with few labelled rows."""
    del data_dir
    nodes, edges, width = (400, 4_000, 8) if quick else (200_000, 10_000_000, 128)
    repeats, least_s = (2, 0.0) if quick else (LEAST_REPEATS, 0.0)
    inputs = power_law_input(nodes, edges, width)
    ratios, times = [], []
    for model in ("gcn", "sage"):
        for label, share in _SHARES.items():
            timings = _timings(inputs, model, share=share, repeats=repeats, least_s=least_s)
            times += [
                Row(
                    metric=f"{model}, {label}: aggregate {case}",
                    unit="ms",
                    spread=timings.spread(case, scale=1e3),
                )
                for case in timings.seconds
            ]
            ratio = timings.ratio(_EACH, _ONCE)
            metric = f"{model}, {label}: {_EACH} / {_ONCE}"
            ratios.append(Row(metric=metric, unit="x", spread=ratio, target=_TARGET))
    degrees = np.sort(np.diff(inputs.indptr))
    setting = {
        "nodes": nodes,
        "edges": edges,
        "median degree": int(degrees[nodes // 2]),
        "largest degree": int(degrees[-1]),
        "width": width,
        "classes": _CLASSES,
        "dropout": 0.0,
        "dtype": "float32",
    }
    return Outcome(name="precomputed_aggregate", setting=setting, ratios=ratios, times=times)


def power_law_input(nodes: int, edges: int, width: int) -> StageInput:
    """Return dense rows and random edges, whose ends are drawn by the same power law."""
    rng = np.random.default_rng(0)
    weights = (1.0 + rng.pareto(_DEGREE_EXPONENT, nodes)).clip(max=nodes / 20)
    bounds = np.cumsum(weights) / weights.sum()
    indptr = np.concatenate(([0], np.rint(bounds * edges).astype(np.int64)))
    sources = np.minimum(np.searchsorted(bounds, rng.random(edges)), nodes - 1)
    return StageInput(
        own=torch.from_numpy(rng.standard_normal((nodes, width), dtype=np.float32)),
        received=torch.zeros(0, width),
        indptr=indptr,
        indices=sources,
        neighbours=np.diff(indptr),
        degrees=np.diff(indptr),
        own_hashes=rng.integers(0, 2**63, nodes).astype(np.uint64),
        slot_hashes=np.zeros(0, np.uint64),
    )


def _timings(
    inputs: StageInput, model: str, *, share: float, repeats: int, least_s: float
) -> Timings:
    recomputing = {"gcn": RecomputingGcn, "sage": RecomputingSage}[model]
    cases = {
        _ONCE: Epoch(inputs, model, share),
        _EACH: Epoch(inputs, f"{__name__}:{recomputing.__name__}", share),
    }
    return interleaved(cases, repeats=repeats, least_s=least_s)


class Epoch:
    """One full-batch gradient over the labelled rows."""

    def __init__(self, inputs: StageInput, model: str, share: float) -> None:
        assert isinstance(inputs.own, torch.Tensor)
        nodes, width = inputs.own.shape
        rng = np.random.default_rng(1)
        shape = ModelShape(
            model=model,
            layers=2,
            inputs=width,
            hidden=width,
            heads=1,
            classes=_CLASSES,
            dtype="float32",
        )
        none = np.zeros(0, np.int64)
        labelled = np.flatnonzero(rng.random(nodes) < share)
        sets = NodeSets(
            train=labelled, validation=none, test=none, labels=rng.integers(0, _CLASSES, nodes)
        )
        self._trainer = LayerTrainer(shape, 0, inputs, sets, seed=0)
        self._weights = initial_weights(shape, 0, seed=0)

    def __call__(self) -> object:
        """Compute the gradient."""
        return self._trainer.update(self._weights, round_number=1, dropout=0.0)
