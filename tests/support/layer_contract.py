"""What every GNN layer must satisfy; a new layer's test inherits :class:`LayerContract`."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array, random_array

from retexo_fl.layers import GraphLayer, KeyedDropout, LayerShape, StageInput, base
from retexo_fl.layers.base import dense_rows

NODES, WIDTH, OUTPUTS, HIDDEN, EDGE_FEATURES = 12, 7, 5, 6, 3
DROPOUT = KeyedDropout(rate=0.3, seed=3, stage=0, round=2)
#: Edges that all count the same, and edges with all that the layer reads of them.
KINDS = pytest.mark.parametrize("kind", ["plain", "valued"])
NOTHING = torch.empty(0, dtype=torch.float64)


def random_graph(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return (indptr, indices) of an undirected graph in which node 0 has no edge."""
    rng = np.random.default_rng(seed)
    upper = np.triu(rng.random((NODES, NODES)) < 0.35, k=1)
    upper[0] = False
    adjacency = csr_array((upper | upper.T).astype(np.int8))
    return adjacency.indptr.astype(np.int64), adjacency.indices.astype(np.int64)


def whole_input(seed: int, *, sparse: bool = False) -> StageInput:
    """Return the input of a client that owns the whole graph, float64."""
    rng = np.random.default_rng(seed)
    indptr, indices = random_graph(seed)
    dense = rng.normal(size=(NODES, WIDTH))
    rows = random_array((NODES, WIDTH), density=0.2, rng=rng, format="csr")
    return StageInput(
        own=csr_array(rows) if sparse else torch.from_numpy(dense),
        received=csr_array((0, WIDTH)) if sparse else torch.zeros(0, WIDTH, dtype=torch.float64),
        indptr=indptr,
        indices=indices,
        neighbours=np.diff(indptr),
        degrees=np.diff(indptr),
        own_hashes=rng.integers(0, 2**63, NODES).astype(np.uint64),
        slot_hashes=np.zeros(0, np.uint64),
    )


def valued(whole: StageInput, layer: type[GraphLayer], seed: int) -> StageInput:
    """Return an input whose edges weigh something, some nothing, and carry what the layer reads."""
    rng = np.random.default_rng(seed + 100)
    drawn = rng.uniform(0.1, 3, (NODES, NODES)) * (rng.random((NODES, NODES)) < 0.9)
    if layer.takes_weights == "any":
        drawn *= rng.choice([-1, 1], drawn.shape)
    if layer.directions != "directed":
        drawn = drawn + drawn.T
    if layer.takes_weights == "none":
        return whole
    return with_values(whole, drawn, directed=layer.directions == "directed")


def with_values(whole: StageInput, drawn: np.ndarray, *, directed: bool) -> StageInput:
    """Return an input in which the edge from node v to node u weighs ``drawn[u, v]``."""
    targets = np.repeat(np.arange(NODES), np.diff(whole.indptr))
    weights = drawn[targets, whole.indices]
    if directed:
        weights = np.column_stack((weights, drawn[whole.indices, targets]))
    totals = np.stack(
        [np.bincount(targets, weights=w, minlength=NODES) for w in np.atleast_2d(weights.T)],
        axis=-1,
    )
    totals = totals if directed else totals[:, 0]
    return replace(whole, edge_weights=weights, neighbours=totals, degrees=totals)


def carrying(whole: StageInput, seed: int) -> StageInput:
    """Return an input whose edges have attributes, the same at both ends."""
    rng = np.random.default_rng(seed + 200)
    drawn = rng.normal(size=(NODES, NODES, EDGE_FEATURES))
    targets = np.repeat(np.arange(NODES), np.diff(whole.indptr))
    if whole.edge_weights is not None and whole.edge_weights.ndim > 1:
        sides = (drawn[targets, whole.indices], drawn[whole.indices, targets])
        return replace(whole, edge_attributes=np.stack(sides, axis=1))
    both = drawn + drawn.transpose(1, 0, 2)
    return replace(whole, edge_attributes=both[targets, whole.indices])


def edge_weights(inputs: StageInput, side: int | None = None) -> np.ndarray:
    """Return the (NODES, NODES) weights of the edges into each node, zero where there is none.

    Of directed edges those that come in (side 0), or that go out (side 1).
    """
    dense = np.zeros((NODES, NODES))
    targets = np.repeat(np.arange(NODES), np.diff(inputs.indptr))
    given = inputs.edge_weights
    if given is not None and side is not None:
        given = given[:, side]
    dense[targets, inputs.indices] = 1 if given is None else given
    return dense


def edge_attributes(inputs: StageInput, side: int | None = None) -> np.ndarray:
    """Return the (NODES, NODES, EDGE_FEATURES) attributes, zero where there is no edge."""
    dense = np.zeros((NODES, NODES, EDGE_FEATURES))
    targets = np.repeat(np.arange(NODES), np.diff(inputs.indptr))
    assert inputs.edge_attributes is not None
    given = inputs.edge_attributes if side is None else inputs.edge_attributes[:, side]
    dense[targets, inputs.indices] = given
    return dense


def cut_input(whole: StageInput, inner: np.ndarray, layer: type[GraphLayer]) -> StageInput:
    """Return the input of a client that owns ``inner`` and has received its neighbours' rows."""
    starts, ends = whole.indptr[inner], whole.indptr[inner + 1]
    sources = [whole.indices[a:b] for a, b in zip(starts, ends, strict=True)]
    edges = [np.arange(a, b) for a, b in zip(starts, ends, strict=True)]
    needed = np.unique(np.concatenate(sources)) if sources else np.zeros(0, np.int64)
    boundary = np.setdiff1d(needed, inner)
    place = {int(node): i for i, node in enumerate([*inner, *boundary])}
    beside = layer.message_factors(whole.degrees)
    edges_held = np.concatenate(edges)
    scale = layer.message_scale(whole.degrees)
    factors = np.ones(NODES) if scale is None else scale
    assert isinstance(whole.own, torch.Tensor)
    rows = whole.own.numpy()
    return StageInput(
        own=torch.from_numpy(rows[inner]),
        received=torch.from_numpy(rows[boundary] * factors[boundary][:, None]),
        indptr=np.concatenate(([0], np.cumsum(ends - starts))),
        indices=np.array([place[int(s)] for part in sources for s in part], dtype=np.int64),
        neighbours=whole.neighbours[inner],
        edge_weights=None if whole.edge_weights is None else whole.edge_weights[edges_held],
        edge_attributes=(
            None if whole.edge_attributes is None else whole.edge_attributes[edges_held]
        ),
        slot_factors=None if beside is None else beside[boundary],
        degrees=whole.degrees[inner],
        own_hashes=whole.own_hashes[inner],
        slot_hashes=whole.own_hashes[boundary],
    )


def with_sums(inputs: StageInput) -> StageInput:
    """Return an input to which came, for each inner node, the sum of its boundary nodes' rows."""
    nodes = inputs.num_nodes
    bounds = list(zip(inputs.indptr[:-1], inputs.indptr[1:], strict=True))
    sources = [inputs.indices[a:b] for a, b in bounds]
    assert isinstance(inputs.received, torch.Tensor)
    rows = inputs.received.numpy()
    foreign = [part[part >= nodes] - nodes for part in sources]
    given = np.ones(len(inputs.indices)) if inputs.edge_weights is None else inputs.edge_weights
    weights = [given[a:b] for a, b in bounds]
    summed = [w[part >= nodes] for w, part in zip(weights, sources, strict=True)]
    kept = [w[part < nodes] for w, part in zip(weights, sources, strict=True)]
    reached = [u for u in range(nodes) if len(foreign[u])]
    slots = {u: [nodes + at] for at, u in enumerate(reached)}
    edges = [[*part[part < nodes], *slots.get(u, [])] for u, part in enumerate(sources)]
    return replace(
        inputs,
        received=torch.from_numpy(np.array([summed[u] @ rows[foreign[u]] for u in reached])),
        edge_weights=(
            None
            if inputs.edge_weights is None
            else np.concatenate([[*w, *([1.0] if u in slots else [])] for u, w in enumerate(kept)])
        ),
        indptr=np.concatenate(([0], np.cumsum([len(part) for part in edges]))),
        indices=np.array([source for part in edges for source in part], dtype=np.int64),
        slot_hashes=np.zeros(len(reached), np.uint64),
    )


def built(layer: type[GraphLayer], seed: int = 0) -> GraphLayer:
    """Return a layer with drawn float64 parameters, those that start at zero included."""
    shape = LayerShape(
        inputs=WIDTH,
        outputs=OUTPUTS,
        hidden=HIDDEN,
        heads=3,
        edge_features=0 if layer.attributes == "none" else EDGE_FEATURES,
    )
    made = layer(shape).double()
    generator = torch.Generator().manual_seed(seed)
    made.reset_parameters(generator)
    for parameter in made.parameters():
        if not parameter.any():
            torch.nn.init.normal_(parameter, generator=generator)
    return made


def run(layer: GraphLayer, inputs: StageInput, rows: np.ndarray, *, drop: bool) -> torch.Tensor:
    """Run a layer on some of its nodes."""
    batch = layer.batch(layer.prepare(inputs), rows)
    result: torch.Tensor = layer(batch, DROPOUT if drop else None)
    return result


class LayerContract:
    """Set ``layer`` in a subclass whose name begins with ``Test``."""

    layer: type[GraphLayer]

    def whole(self, seed: int, kind: str, *, sparse: bool = False) -> StageInput:
        """Return the input of a whole graph; ``valued``: with what the layer reads of edges."""
        inputs = whole_input(seed, sparse=sparse)
        if kind == "valued":
            inputs = valued(inputs, self.layer, seed)
        elif self.layer.directions == "directed":
            there = np.random.default_rng(seed).random((NODES, NODES)) < 0.6
            inputs = with_values(inputs, there.astype(float), directed=True)
        return inputs if self.layer.attributes == "none" else carrying(inputs, seed)

    def reference(self, layer: GraphLayer, inputs: StageInput) -> torch.Tensor:
        """Return the (N, OUTPUTS) rows by a dense formula written for clarity."""
        raise NotImplementedError

    @KINDS
    @pytest.mark.parametrize("seed", [0, 1])
    def test_forward_equals_dense_formula(self, seed: int, kind: str) -> None:
        layer, inputs = built(self.layer, seed), self.whole(seed, kind)
        result = run(layer, inputs, np.arange(NODES), drop=False)
        torch.testing.assert_close(result, self.reference(layer, inputs), rtol=1e-12, atol=1e-12)

    @KINDS
    def test_forward_of_isolated_node_is_finite(self, kind: str) -> None:
        result = run(built(self.layer), self.whole(0, kind), np.array([0]), drop=False)
        assert result.shape == (1, OUTPUTS)
        assert torch.isfinite(result).all()

    @KINDS
    @pytest.mark.parametrize("drop", [False, True])
    def test_forward_of_cut_graph_equals_whole(self, drop: bool, kind: str) -> None:
        layer, whole = built(self.layer), self.whole(4, kind)
        expected = run(layer, whole, np.arange(NODES), drop=drop)
        for inner in (np.arange(0, NODES, 2), np.array([1, 3, 5, 7, 9, 11])):
            part = cut_input(whole, inner, self.layer)
            result = run(layer, part, np.arange(len(inner)), drop=drop)
            torch.testing.assert_close(result, expected[inner], rtol=1e-12, atol=1e-12)

    @KINDS
    def test_layer_that_sums_reads_sums_as_well_as_rows(self, kind: str) -> None:
        layer, whole = built(self.layer), self.whole(4, kind)
        inner = np.arange(0, NODES, 2)
        rows = cut_input(whole, inner, self.layer)
        if layer.sums_messages:
            expected = run(layer, rows, np.arange(len(inner)), drop=True)
            result = run(layer, with_sums(rows), np.arange(len(inner)), drop=True)
            torch.testing.assert_close(result, expected, rtol=1e-12, atol=1e-12)

    @KINDS
    @pytest.mark.parametrize("drop", [False, True])
    def test_sparse_input_equals_dense(
        self, drop: bool, kind: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # Rows of so few columns would be dense ones before a layer got them.
        monkeypatch.setattr(base, "_DENSE_ABOVE", 1.0)
        layer, sparse = built(self.layer), self.whole(5, kind, sparse=True)
        assert not isinstance(sparse.own, torch.Tensor)
        dense = replace(
            sparse,
            own=torch.from_numpy(sparse.own.toarray()),
            received=torch.zeros(0, WIDTH, dtype=torch.float64),
        )
        rows = np.array([2, 5, 7])
        torch.testing.assert_close(
            run(layer, sparse, rows, drop=drop),
            run(layer, dense, rows, drop=drop),
            rtol=1e-12,
            atol=1e-12,
        )

    @KINDS
    @pytest.mark.parametrize("sparse", [False, True])
    def test_gradient_equals_finite_differences(
        self, sparse: bool, kind: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(base, "_DENSE_ABOVE", 1.0)
        layer, inputs = built(self.layer), self.whole(6, kind, sparse=sparse)
        batch = layer.batch(layer.prepare(inputs), np.array([0, 1, 4, 8]))
        names = [name for name, _ in layer.named_parameters()]
        assert all(parameter.requires_grad for parameter in layer.parameters())

        def apply(*values: torch.Tensor) -> torch.Tensor:
            named = dict(zip(names, values, strict=True))
            result: torch.Tensor = torch.func.functional_call(layer, named, (batch, DROPOUT))
            return result

        # Along random directions: entry by entry, what layers are made of is checked by itself.
        assert torch.autograd.gradcheck(apply, tuple(layer.parameters()), fast_mode=True)

    @KINDS
    def test_sampled_edges_count_as_often_as_they_stand_for(self, kind: str) -> None:
        layer, inputs = built(self.layer), self.whole(3, kind)
        if not layer.scales_edges:
            return
        scales = np.random.default_rng(0).integers(1, 4, len(inputs.indices)).astype(float)
        weights = np.ones(len(scales)) if inputs.edge_weights is None else inputs.edge_weights
        heavier = replace(inputs, edge_weights=(weights.T * scales).T)
        everyone = np.arange(NODES)
        result = run(layer, replace(inputs, edge_scales=scales), everyone, drop=False)
        expected = run(layer, heavier, everyone, drop=False)
        torch.testing.assert_close(result, expected, rtol=1e-12, atol=1e-12)
        assert not torch.allclose(result, run(layer, inputs, everyone, drop=False))

    def test_attributes_that_it_does_not_read_change_nothing(self) -> None:
        layer, inputs = built(self.layer), self.whole(3, "plain")
        if layer.attributes == "none":
            result = run(layer, carrying(inputs, 3), np.arange(NODES), drop=False)
            assert torch.equal(result, run(layer, inputs, np.arange(NODES), drop=False))

    def test_rows_inside_have_another_mask_than_those_that_come_in(self) -> None:
        layer, inputs = built(self.layer), self.whole(2, "plain")
        if not isinstance(norm := getattr(layer, "norm", None), torch.nn.LayerNorm):
            return
        with torch.no_grad():
            # All that is left of the rows inside is what dropout keeps.
            norm.bias.fill_(100)
            layer.get_parameter("weight").copy_(torch.eye(HIDDEN, OUTPUTS))
            layer.get_parameter("bias").zero_()
        kept = run(layer, inputs, np.arange(NODES), drop=True) != 0
        masked = DROPOUT.dense(torch.ones(NODES, OUTPUTS), inputs.own_hashes) != 0
        assert 0.4 < kept.double().mean() < 0.95
        assert not torch.equal(kept, masked)

    @KINDS
    def test_batch_of_no_rows_is_empty(self, kind: str) -> None:
        result = run(built(self.layer), self.whole(0, kind), np.zeros(0, np.int64), drop=True)
        assert result.shape == (0, OUTPUTS)

    @KINDS
    @pytest.mark.parametrize("rows", [np.arange(6), np.array([0, 3]), np.zeros(0, np.int64)])
    def test_batches_of_trained_rows_equal_those_of_fixed_rows(
        self, rows: np.ndarray, kind: str
    ) -> None:
        layer, whole = built(self.layer), self.whole(7, kind)
        inputs = cut_input(whole, np.arange(6), self.layer)
        make = layer.trained_batches(replace(inputs, own=NOTHING, received=NOTHING), rows)
        expected = run(layer, inputs, rows, drop=True)
        stacked = torch.cat([dense_rows(x, torch.float64) for x in (inputs.own, inputs.received)])
        for _ in range(2):
            torch.testing.assert_close(layer(make(stacked), DROPOUT), expected, rtol=0, atol=0)

    @KINDS
    def test_gradient_of_trained_rows_equals_finite_differences(self, kind: str) -> None:
        layer, whole = built(self.layer), self.whole(8, kind)
        inputs = cut_input(whole, np.arange(6), self.layer)
        make = layer.trained_batches(inputs, np.array([1, 2, 5]))

        def apply(stacked: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = layer(make(stacked), DROPOUT)
            return result

        rows = [dense_rows(x, torch.float64) for x in (inputs.own, inputs.received)]
        assert torch.autograd.gradcheck(apply, torch.cat(rows).requires_grad_(), fast_mode=True)
