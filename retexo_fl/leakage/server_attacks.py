"""What a curious server reads from updates and sums: labels, rows, who was trained on.

Symbols: n train nodes of a client, P weights, C classes, D' width of the rows that a layer reads.

Every attack is given an update in the clear, or in its place what masks leave: the sum over the
client's cohort, which is opened for each cohort by itself. A guess knows the sum over all clients.
Sources: Zhao et al., arXiv 2001.02610 (labels from the gradient of a bias);
Geiping et al., NeurIPS 2020, proposition 3.1 (rows from a linear layer with a bias); Nasr et al.,
S&P 2019 (members by gradients).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F

from retexo_fl.graph.features import Features
from retexo_fl.graph.parts.partition import GraphPartition
from retexo_fl.layers.aggregate import AggregatedInput, AggregatedLayer
from retexo_fl.layers.base import StageInput, dense_rows
from retexo_fl.leakage.figures import Finding, membership
from retexo_fl.leakage.product_members import members_from_products
from retexo_fl.leakage.scores import auc, cosines
from retexo_fl.leakage.watch import Products, Watch
from retexo_fl.training.linear_step import is_linear
from retexo_fl.training.stage_model import ModelShape, StageModel, named_weights

#: Clients with as many train nodes at most, by which figures are listed.
SIZES: Final = ((1, 1), (2, 4), (5, 9), (10, 99), (100, None))
#: Of a hidden layer as LayerNorm makes it, to know what an untrained head says of anything.
_DRAWN_ROWS: Final = 4096
#: Rows that are closer together, by the share of a row's length, are the same up to rounding.
_SAME: Final = 1e-3
#: Candidates of each kind that are tried for a client, and of both kinds for all clients. The area
#: over the few train nodes of one small client is off by .2, so many such clients are tried.
_MOST_CANDIDATES: Final = 150
_LEAST_CANDIDATES: Final = 2
_MOST_TRIED: Final = 6000


def play_on_server(
    watch: Watch, parts: Sequence[GraphPartition], *, seed: int
) -> tuple[list[Finding], list[str]]:
    """Play what a server can with what it received.

    Args:
        watch: Of a training in the clear that learns one class for each node.
        parts: Of all clients, by index.
        seed: Of what is drawn.

    Returns:
        What was found, and which attacks were not played.
    """
    shape = watch.shape
    assert shape is not None
    found: list[Finding] = []
    skipped: list[str] = []
    first = watch.rounds.get(0, [])
    if first and first[0].number == 1:
        found.append(_labels(shape, watch, parts))
    else:
        skipped.append("labels from updates: no rounds, since the last layer is solved for")
    if watch.first_sums:
        found.append(_rows_from_sums(watch))
    if watch.products:
        found += _from_products(watch, shape.classes)
        whose = members_from_products(watch, shape.classes, seed=seed)
        found += [] if whose is None else [whose]
    else:
        skipped.append("products of rows and labels: no layer, and no floor, is solved for")
    if first and is_linear(StageModel(shape, 0)):
        reads = {client: _read_rows(shape, 0, watch, client) for client in watch.inputs[0]}
        found.append(_rows_from_update(shape, watch, reads, parts))
    elif first:
        skipped.append(f"rows from updates: {shape.model} is no matrix product of fixed rows")
    if shape.refines:
        skipped.append("updates of two layers together: those of each layer alone are played")
    stages = [
        stage
        for stage, rounds in sorted(watch.rounds.items())
        if rounds and isinstance(StageModel(shape, stage).layer, AggregatedLayer)
    ]
    members = _members(shape, stages, watch, parts, seed=seed)
    found += [] if members is None else [members]
    if len(first) > 1 and first[0].updates.keys() == first[1].updates.keys():
        found.append(_differences(watch))
    if watch.agreement is None:
        found = [_unmasked(one) for one in found]
    return found, skipped


class _Hit(NamedTuple):
    """What is reached of a client: from its own answer, its cohort's sum, the sum of all."""

    clear: float
    masked: float
    guess: float


# ---- labels --------------------------------------------------------------------------------------


def _labels(shape: ModelShape, watch: Watch, parts: Sequence[GraphPartition]) -> Finding:
    """Count a client's labels by the gradient of the classifier's bias, ``sum_i p_i - y_i``."""
    first = watch.rounds[0][0]
    shares = _untrained_shares(shape, first.weights)
    hits: dict[int, _Hit] = {}

    def classes_of(clients: Sequence[int]) -> np.ndarray:
        total = sum(first.examples.get(client, 0) for client in clients)
        counts = _counts_from(shape, first.total_of(clients), total, shares)
        return counts / total

    for client, update in first.updates.items():
        part = parts[client]
        true = np.bincount(
            np.asarray(part.labels)[np.asarray(part.train_mask)], minlength=shape.classes
        )
        n = int(true.sum())
        if not n:
            continue
        known = _counts_from(shape, update, n, shares)
        hits[client] = _Hit(
            clear=_shared(known, true),
            masked=_shared(n * classes_of(watch.together(client)), true),
            guess=_shared(n * classes_of(sorted(first.updates)), true),
        )
    return _by_clients(
        hits,
        first.examples,
        attack="labels, from a first update",
        measure="share right",
        note="by the gradient of the classifier's bias; a guess knows the classes of all clients",
    )


def _untrained_shares(shape: ModelShape, weights: np.ndarray) -> np.ndarray:
    """Return the (C,) mean prediction of untrained weights, of rows that nobody has to know."""
    named = named_weights(shape, 0, weights)
    if "head.weight" not in named:
        return np.full(shape.classes, 1 / shape.classes)
    generator = torch.Generator().manual_seed(0)
    weight = torch.from_numpy(named["head.weight"]).double()
    drawn = torch.randn(_DRAWN_ROWS, weight.shape[1], generator=generator, dtype=torch.float64)
    hidden = F.relu(F.layer_norm(drawn, (weight.shape[1],)))
    logits = hidden @ weight.T + torch.from_numpy(named["head.bias"]).double()
    shares: np.ndarray = torch.softmax(logits, dim=1).mean(dim=0).numpy()
    return shares


def _counts_from(shape: ModelShape, update: np.ndarray, n: int, shares: np.ndarray) -> np.ndarray:
    named = named_weights(shape, 0, update)
    gradient = named["head.bias" if "head.bias" in named else "layer.bias"].astype(float)
    counts = np.maximum(n * shares - gradient, 0.0)
    return counts * (n / counts.sum()) if counts.sum() else n * shares


def _shared(guessed: np.ndarray, true: np.ndarray) -> float:
    """Return which share of labels is right if as many as guessed are given of each class."""
    whole = np.floor(guessed).astype(int)
    rest = round(guessed.sum()) - int(whole.sum())
    whole[np.argsort(-(guessed - whole), kind="stable")[: max(rest, 0)]] += 1
    return float(np.minimum(whole, true).sum() / true.sum())


# ---- rows ----------------------------------------------------------------------------------------


def _read_rows(shape: ModelShape, stage: int, watch: Watch, client: int) -> np.ndarray:
    """Return the (N, D') rows that a stage's layer reads of a client's nodes."""
    model = StageModel(shape, stage)
    assert isinstance(model.layer, AggregatedLayer)
    prepared = model.layer.prepare(watch.inputs[stage][client])
    assert isinstance(prepared, AggregatedInput)
    dtype = getattr(torch, shape.dtype)
    rows: np.ndarray = dense_rows(prepared.rows, dtype).numpy()
    return rows


def _rows_from_update(
    shape: ModelShape,
    watch: Watch,
    reads: Mapping[int, np.ndarray],
    parts: Sequence[GraphPartition],
) -> Finding:
    """Divide the gradient of a layer's weights by that of its bias: of one node, its row."""
    first = watch.rounds[0][0]
    of_all = first.total_of(sorted(first.updates))
    hits: dict[int, _Hit] = {}
    for client, update in first.updates.items():
        train = np.flatnonzero(parts[client].train_mask)
        if len(train):
            rows = reads[client][train]
            of_cohort = first.total_of(watch.together(client))
            hits[client] = _Hit(
                *(
                    float(np.abs(cosines(rows, _row_in(shape, vector))).max())
                    for vector in (update, of_cohort, of_all)
                )
            )
    return _by_clients(
        hits,
        first.examples,
        attack="a row read, from a first update",
        measure="best cosine",
        note="exact for a client of one train node; a guess is what the sum of all says",
    )


def _row_in(shape: ModelShape, update: np.ndarray) -> np.ndarray:
    named = named_weights(shape, 0, update)
    bias = named["layer.bias"].astype(float)
    row: np.ndarray = named["layer.weight"].astype(float) @ bias
    return row


def _rows_from_sums(watch: Watch) -> Finding:
    """Take a client's sum of features for a row: of one train node it is that."""
    first = watch.first_sums
    sums = {client: one.sums for client, one in first.items()}
    hits: dict[int, _Hit] = {}
    sizes: dict[int, int] = {}
    for client, one in first.items():
        if not one.rows.shape[0]:
            continue
        rows = _dense(one.rows)
        sizes[client] = len(rows)
        hits[client] = _Hit(
            *(
                float(cosines(rows, vector).max())
                for vector in (one.sums, _summed(sums, watch.together(client)), _summed(sums))
            )
        )
    return _by_clients(
        hits,
        sizes,
        attack="features, from sums for a basis",
        measure="best cosine",
        note="exact for a client of one train node",
    )


def _from_products(watch: Watch, classes: int) -> list[Finding]:
    """Read what sums of products say of single nodes (:mod:`retexo_fl.training.ridge`).

    With ``A`` (n, D + 1) the rows of train nodes with a one behind each, and ``Y`` (n, C) their
    classes as indicators, the last row of ``B = A' Y`` counts a client's labels; a column of it is
    the sum of the rows of one class, which is a row where the class has one train node. Sums with
    noise have no last row: the lengths of columns replace it.
    """
    products = watch.products
    width = next(iter(products.values())).rows.shape[1]
    sums = {client: one.sums for client, one in products.items()}
    told = {client: one.told for client, one in products.items()}
    has_noise = any(one.noise is not None for one in products.values())
    everybody = _class_sums(_summed(told), width, classes, counted=not has_noise)
    labels: dict[int, _Hit] = {}
    rows: dict[int, _Hit] = {}
    sizes: dict[int, int] = {}
    for client, one in products.items():
        if not len(one.rows):
            continue
        sizes[client] = n = len(one.rows)
        true = np.bincount(one.labels, minlength=classes)
        own, cohort = (
            _class_sums(of, width, classes, counted=not has_noise)
            for of in (sums[client], _summed(told, watch.together(client)))
        )
        views = own, cohort, everybody
        labels[client] = _Hit(
            *(_shared(n * view[-1] / max(view[-1].sum(), 1.0), true) for view in views)
        )
        rows[client] = _Hit(*(_share_read(one, view) for view in views))
    how = "by the lengths of their sums" if has_noise else "exactly"
    return [
        _by_clients(
            labels,
            sizes,
            attack="labels, from products for a regression",
            measure="share right",
            note=f"counted by class, {how}; a guess knows the classes of all clients",
        ),
        _by_clients(
            rows,
            sizes,
            attack="rows, from products for a regression",
            measure="share of nodes",
            note="exact for the only train node of its class, in a masked sum of its cohort's",
        ),
    ]


def _class_sums(sums: np.ndarray, width: int, classes: int, *, counted: bool) -> np.ndarray:
    """Return the (D + 1, C) sums of rows by class, and below them how many there are.

    Args:
        sums: (S,) of products.
        width: D.
        classes: C.
        counted: They say how many; else the lengths of sums replace that.
    """
    rows = width + counted
    begin = rows * (rows + 1) // 2
    found: np.ndarray = sums[begin : begin + rows * classes].reshape(rows, classes)
    return found if counted else np.vstack([found, np.linalg.norm(found, axis=0)])


def _summed(by_client: Mapping[int, np.ndarray], clients: Sequence[int] = ()) -> np.ndarray:
    """Return a sum over some clients in their order, of all if none is named."""
    chosen = clients or sorted(by_client)
    total: np.ndarray = np.sum([by_client[c] for c in chosen if c in by_client], axis=0)
    return total


def _share_read(one: Products, sums: np.ndarray) -> float:
    """Return of how many train nodes the sum of their class is the row itself."""
    lengths = np.linalg.norm(one.rows, axis=1)
    apart = np.linalg.norm(sums[:-1].T[one.labels] - one.rows, axis=1)
    return float(np.mean((apart <= _SAME * lengths) & (lengths > 0)))


def _dense(rows: Features) -> np.ndarray:
    return np.asarray(rows if isinstance(rows, np.ndarray) else rows.toarray(), dtype=float)


# ---- members -------------------------------------------------------------------------------------


def _members(
    shape: ModelShape,
    stages: Sequence[int],
    watch: Watch,
    parts: Sequence[GraphPartition],
    *,
    seed: int,
) -> Finding | None:
    """Compare gradients of candidates, whose rows and labels are known, with updates.

    By the cosine with the last update of each stage that was watched, added up.
    """
    own: list[tuple[float, float]] = []
    counts: list[tuple[int, int]] = []
    tried = 0
    for client, part in enumerate(parts):
        trained = np.asarray(part.train_mask)
        others = np.asarray(part.val_mask) | np.asarray(part.test_mask)
        generator = np.random.default_rng([seed, client])
        members, strangers = (
            generator.permutation(np.flatnonzero(mask))[:_MOST_CANDIDATES]
            for mask in (trained, others)
        )
        nodes = np.concatenate([members, strangers])
        if tried + len(nodes) > _MOST_TRIED:
            break
        if min(len(members), len(strangers)) < _LEAST_CANDIDATES:
            continue
        tried += len(nodes)
        scores = np.zeros((2, len(nodes)))
        for stage in stages:
            last = watch.rounds[stage][-1]
            if client in last.updates:
                losses = _NodeLosses(shape, stage, watch.inputs[stage][client], last.weights)
                labels = np.asarray(part.labels)
                gradients = np.stack([losses.gradient(node, labels[node]) for node in nodes])
                vectors = (last.updates[client], last.total_of(watch.together(client)))
                scores += [cosines(gradients, vector) for vector in vectors]
        clear, masked = (auc(of[: len(members)], of[len(members) :]) for of in scores)
        own.append((clear, masked))
        counts.append((len(members), len(strangers)))
    if not own or not stages:
        return None
    return membership("from an update", own, counts)


class _NodeLosses:
    """Losses of single nodes of a client, without dropout."""

    def __init__(
        self, shape: ModelShape, stage: int, inputs: StageInput, weights: np.ndarray
    ) -> None:
        self._model = StageModel(shape, stage)
        self._model.flat.bind(weights)
        self._prepared = self._model.layer.prepare(inputs)
        self._parameters = list(self._model.parameters())

    def gradient(self, node: int, label: int) -> np.ndarray:
        """Return the (P,) gradient of one node's loss."""
        batch = self._model.layer.batch(self._prepared, np.array([node]))
        logits = self._model.classify(batch, None)
        loss = F.cross_entropy(logits, torch.tensor([int(label)]))
        # A layer of types has weights that a node of another type does not read.
        pieces = torch.autograd.grad(
            loss, self._parameters, allow_unused=True, materialize_grads=True
        )
        whole: np.ndarray = torch.cat([piece.reshape(-1) for piece in pieces]).numpy()
        return whole.astype(float)


# ---- one client away -----------------------------------------------------------------------------


def _differences(watch: Watch) -> Finding:
    """Subtract the sum of a round that a client is missing in from that of the one before."""
    first, second = watch.rounds[0][:2]
    of_all = first.total_of(sorted(first.updates))
    found: list[float] = []
    masked: list[float] = []
    guessed: list[float] = []
    for client, update in first.updates.items():
        members = watch.together(client)
        total = first.total_of(members)
        without = total - (second.total_of(members) - second.updates[client])
        for figures, vector in ((found, without), (masked, total), (guessed, of_all)):
            figures.append(float(cosines(update[None], vector)[0]))
    return Finding(
        attack="an update, by leaving its client out",
        reader="server",
        measure="cosine",
        guess=float(np.mean(guessed)),
        clear=1.0,
        masked=float(np.mean(masked)),
        by={"if_one_could_be_left_out": float(np.mean(found))},
        note=(
            "in the clear the update itself; masked sums of fewer clients than agreed do not "
            "open, else the sums of two rounds would give what stands beside"
        ),
    )


# ---- figures -------------------------------------------------------------------------------------


def _by_clients(
    hits: Mapping[int, _Hit],
    examples: Mapping[int, int],
    *,
    attack: str,
    measure: str,
    note: str,
) -> Finding:
    """Return what was reached by client: means."""
    clear, masked, guess = _means(hits.values())
    return Finding(
        attack=attack,
        reader="server",
        measure=measure,
        guess=guess,
        clear=clear,
        masked=masked,
        by={"by_train_nodes": _by_size(hits, examples)},
        note=note,
    )


def _means(hits: Collection[_Hit]) -> _Hit:
    return _Hit(*map(float, np.mean([*hits], axis=0))) if hits else _Hit(0.0, 0.0, 0.0)


def _unmasked(one: Finding) -> Finding:
    """Return what was reached where there can be no masks."""
    by = dict(one.by)
    if "by_train_nodes" in by:
        by["by_train_nodes"] = [{**row, "masked": None} for row in by["by_train_nodes"]]
    return replace(one, masked=None, by=by)


def _by_size(
    hits: Mapping[int, _Hit], examples: Mapping[int, int]
) -> list[dict[str, float | int | str]]:
    """Return means over clients of like numbers of train nodes."""
    rows: list[dict[str, float | int | str]] = []
    for least, most in SIZES:
        inside = [
            hit
            for client, hit in hits.items()
            if examples[client] >= least and (most is None or examples[client] <= most)
        ]
        if inside:
            means = _means(inside)
            named = str(least) if least == most else f"{least} to {most}" if most else f"{least}+"
            rows.append(
                {
                    "train_nodes": named,
                    "clients": len(inside),
                    "clear": means.clear,
                    "masked": means.masked,
                }
            )
    return rows
