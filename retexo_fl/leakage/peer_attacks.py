"""What a curious peer reads from rows that it is sent: which of their nodes are linked.

A client B knows its own part, the edges that cross, and the rows that crossed. It ranks pairs of
another client A's nodes that it sees; what it looks for in them it learns on its own nodes that A
sees, whose edges it knows.

Three attackers see more and more: the edges across alone (what no change of rows lowers), the rows
alone, and both. What rows add is the difference of the last and the first. Each figure is of what
it has learned or of its best score, chosen on the answer: all are upper bounds. Two clients may
look together, as one that has the parts of both; one may send first rows of its own choice.

Symbols: p pairs, D width of a row, k columns of scores. Source: the attack of He et al., USENIX
Security 2021 (links by similar posteriors), with the sums of unknown neighbours that lazy layers
let a peer solve for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self, TypeAlias

import numpy as np
from scipy.optimize import minimize
from scipy.sparse import csr_array, vstack
from scipy.special import expit

from retexo_fl.graph.parts.partition import GraphPartition
from retexo_fl.layers.base import Rows, StageInput
from retexo_fl.leakage.figures import Finding
from retexo_fl.leakage.scores import auc, found_at_few_alarms, precision_at

#: Clients that attack all others; pairs of each kind that are looked at for one and another.
_MOST_ATTACKERS: Final = 5
_MOST_LINKS: Final = 2_000
_MOST_OTHERS: Final = 6_000
#: Coordinates that wider rows are reduced to.
MOST_COLUMNS: Final = 96
#: Of regressions, as a share of the mean square; of the attacker's own, on standardised scores.
_RIDGE: Final = 1e-2
_PENALTY: Final = 0.3
_PENALTIES: Final = np.logspace(-3, 1, 9)
_MOST_LEVERAGE: Final = 0.999
_STEPS: Final = 200
_FARTHEST: Final = 5.0
#: Of links, and of pairs without one, to learn on or to look for.
_LEAST_LINKS: Final = 3
#: Figures of each attacker.
MEASURES: Final = ("auc", "found at 1 % false alarms", "right among as many")
#: Who sees all.
BOTH: Final = "rows and edges across"
#: What is known of a pair from edges across: shared neighbours, the same with rare ones counting
#: more, their share, and both degrees.
_STRUCTURE: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Rows:
    """One exchange as an attacker has it: coordinates, which its own rows define.

    Attributes:
        own: (N, k) of its nodes.
        received: (B, k) of boundary nodes.
        whitening: (k, k) that gives its own rows the covariance of one.
    """

    own: np.ndarray
    received: np.ndarray
    whitening: np.ndarray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Joined:
    """Nodes and edges of some clients, as one client would have them.

    Attributes:
        members: These clients, ascending.
        graph: (N, N + B) edges, 1 where there is one: nodes of one member after the other, then
            boundary nodes, by owner and key.
        owners: (B,) who owns each boundary node.
        chosen: (B,) which of all members' slots, one after the other, is taken for it.
    """

    members: tuple[int, ...]
    graph: csr_array
    owners: np.ndarray
    chosen: np.ndarray

    @classmethod
    def of(cls, members: Sequence[int], parts: Sequence[GraphPartition]) -> Self:
        """Join the parts of some clients; both see rows and edges of either."""
        starts = np.cumsum([0, *(part.num_inner for part in parts)])
        place = np.full(starts[-1], -1)
        own = np.concatenate([np.arange(*starts[m : m + 2]) for m in members])
        place[own] = np.arange(len(own))
        slots = [numbers_of_slots(parts[m], parts, starts) for m in members]
        boundary, chosen = np.unique(np.concatenate(slots), return_index=True)
        is_foreign = place[boundary] < 0
        boundary, chosen = boundary[is_foreign], chosen[is_foreign]
        place[boundary] = len(own) + np.arange(len(boundary))
        ends = []
        for member, of_slots in zip(members, slots, strict=True):
            part, inner = parts[member], np.arange(*starts[member : member + 2])
            rows = np.repeat(place[inner], np.diff(part.indptr))
            numbers = np.concatenate([inner, of_slots])[np.asarray(part.indices)]
            ends.append(np.stack([rows, place[numbers]]))
        rows, columns = np.concatenate(ends, axis=1)
        shape = (len(own), len(own) + len(boundary))
        graph = csr_array((np.ones(len(rows)), (rows, columns)), shape=shape)
        owners = np.searchsorted(starts, boundary, side="right") - 1
        return cls(members=tuple(members), graph=graph, owners=owners, chosen=chosen)

    @property
    def size(self) -> int:
        """N."""
        return int(self.graph.shape[0])

    def rows(self, exchange: Mapping[int, StageInput], seed: Sequence[int]) -> _Rows:
        """Return what all members have of an exchange."""
        own = _stacked([exchange[m].own for m in self.members])
        received = _stacked([exchange[m].received for m in self.members])
        return _coordinates(own, received[self.chosen], seed)

    def side(self, viewers: Sequence[int], rows: Sequence[np.ndarray]) -> _Side:
        """Return the nodes that have an edge to a viewer's.

        ``rows`` are of all nodes, or of those alone that the viewers see; both in order.
        """
        is_viewers = np.flatnonzero(np.isin(self.owners, viewers))
        across = csr_array(self.graph[:, self.size + is_viewers])
        nodes = np.flatnonzero(np.diff(across.indptr))
        links = csr_array(csr_array(self.graph[:, : self.size])[nodes][:, nodes])
        return _Side(
            across=csr_array(across[nodes]),
            rows=tuple(one if len(one) == len(nodes) else one[nodes] for one in rows),
            links=links,
        )


def numbers_of_slots(
    part: GraphPartition, parts: Sequence[GraphPartition], starts: np.ndarray
) -> np.ndarray:
    """Return the (B,) numbers of a part's boundary nodes among all nodes of all parts."""
    numbers = np.zeros(part.num_boundary, np.int64)
    for owner in np.unique(part.boundary_owners):
        slots = np.flatnonzero(np.asarray(part.boundary_owners) == owner)
        hashes = np.asarray(parts[owner].node_hashes)
        order = np.argsort(hashes)
        found = np.searchsorted(hashes[order], np.asarray(part.boundary_hashes)[slots])
        numbers[slots] = starts[owner] + order[found]
    return numbers


def _stacked(parts: Sequence[Rows]) -> np.ndarray | csr_array:
    if all(isinstance(part, csr_array) for part in parts):
        return csr_array(vstack(parts, format="csr")).astype(float)
    return np.concatenate([dense(part) for part in parts])


def dense(rows: Rows) -> np.ndarray:
    """Return rows as they crossed, (B, D) float64."""
    return np.asarray(rows.toarray() if isinstance(rows, csr_array) else rows.numpy(), dtype=float)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Side:
    """Nodes of one side of the edges between two clients, as the other one sees them.

    Attributes:
        across: (m, l) which of the other side's nodes each has an edge to, 1 or 0.
        rows: Of each exchange, (m, k).
        links: (m, m) the edges between them, which their owner alone knows.
    """

    across: csr_array
    rows: tuple[np.ndarray, ...]
    links: csr_array


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Pairs:
    """Pairs of nodes with an edge and pairs without one, (p, 2) places among those seen.

    ``times`` is how many pairs without an edge each of ``others`` represents.
    """

    linked: np.ndarray
    others: np.ndarray
    times: float


@dataclass(frozen=True, slots=True)
class _Column:
    """Ranks by one of the scores."""

    at: int

    def __call__(self, scores: np.ndarray) -> np.ndarray:
        ranked: np.ndarray = scores[:, self.at]
        return ranked


#: Gives each of (p, k) scores a place.
_Ranking: TypeAlias = Callable[[np.ndarray], np.ndarray]
#: Scores of linked pairs, and of others.
_Scores: TypeAlias = tuple[np.ndarray, np.ndarray]


def play_on_peers(
    crossed: Mapping[int, Mapping[int, StageInput]],
    parts: Sequence[GraphPartition],
    *,
    seed: int,
) -> Finding | None:
    """Play what peers can with the rows that they received.

    Args:
        crossed: By exchange and client, own rows and those of boundary nodes, one for each; of no
            exchange where no rows cross.
        parts: Of all clients, by index.
        seed: Of what is drawn.

    Returns:
        What was found; None where no two clients see links of each other.
    """
    exchanges = _exchanges(crossed, parts)
    alone = _figures([(client,) for client in range(len(parts))], exchanges, parts, seed=seed)
    if not alone:
        return None
    mean, both = _mean(alone), BOTH if exchanges else "edges across"
    pairs = [(client, client + 1) for client in range(0, len(parts) - 1, 2)]
    together = _figures(pairs, exchanges, parts, seed=seed) if len(parts) > 2 else []
    return _finding(
        "from rows",
        mean,
        attackers=len(alone),
        beside={
            "spread_of_auc": float(np.ptp([one[f"auc, {both}"] for one in alone])),
            **({"two_together": _mean(together)} if together else {}),
        },
        note="without any row a peer knows the edges that cross, and reaches the figure beside",
    )


def play_on_active_peer(
    peer: int,
    honest: Mapping[int, Mapping[int, StageInput]],
    active: Mapping[int, Mapping[int, StageInput]],
    parts: Sequence[GraphPartition],
    *,
    seed: int,
) -> Finding | None:
    """Play what one peer can that sends first rows of its own choice.

    Args:
        peer: Who.
        honest: As for :func:`play_on_peers`, where it sends its nodes' rows.
        active: The same where it sends others.
        parts: Of all clients, by index.
        seed: Of what is drawn.

    Returns:
        What was found; None where it sees no links.
    """
    found, before = (
        _attack((peer,), _exchanges(crossed, parts), parts, seed=seed)
        for crossed in (active, honest)
    )
    if not found or not before:
        return None
    return _finding(
        "from rows beside faint ones",
        found,
        attackers=1,
        beside={"honest": before},
        note=(
            "one peer sends rows near zero, so that rows of nodes beside its own are of their "
            "other neighbours; large ones hide these, and no bound of values keeps small ones out"
        ),
    )


def _exchanges(
    crossed: Mapping[int, Mapping[int, StageInput]], parts: Sequence[GraphPartition]
) -> list[Mapping[int, StageInput]]:
    """Return the exchanges in which all clients took part, in their order."""
    return [crossed[stage] for stage in sorted(crossed) if len(crossed[stage]) == len(parts)]


def _finding(
    how: str, found: Mapping[str, float], *, attackers: int, beside: Mapping[str, Any], note: str
) -> Finding:
    """Return figures of :func:`_attack`; without any exchange they are of edges across."""
    return Finding(
        attack=f"edges inside a part, {how}",
        reader="peers",
        measure="ROC AUC",
        guess=0.5,
        clear=found.get(f"auc, {BOTH}", found["auc, edges across"]),
        cut=found["auc, edges across"],
        by={"attackers": attackers, **found, **beside},
        note=note,
    )


def _figures(
    lookers: Sequence[tuple[int, ...]],
    exchanges: Sequence[Mapping[int, StageInput]],
    parts: Sequence[GraphPartition],
    *,
    seed: int,
) -> list[dict[str, float]]:
    """Return the figures of the first so many lookers that see links."""
    figures: list[dict[str, float]] = []
    for members in lookers:
        if len(figures) < _MOST_ATTACKERS:
            found = _attack(members, exchanges, parts, seed=seed)
            figures += [found] if found else []
    return figures


def _mean(figures: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {name: float(np.mean([one[name] for one in figures])) for name in figures[0]}


def _attack(
    members: tuple[int, ...],
    exchanges: Sequence[Mapping[int, StageInput]],
    parts: Sequence[GraphPartition],
    *,
    seed: int,
) -> dict[str, float]:
    """Return how well one client, or some together, do on all their peers.

    Nothing where they cannot learn or look.
    """
    looker = _Joined.of(members, parts)
    known_rows = [looker.rows(one, [seed, *members]) for one in exchanges]
    learned: list[_Scores] = []
    wanted: list[tuple[_Scores, float]] = []
    for peer in map(int, np.unique(looker.owners)):
        ours = looker.side([peer], [rows.own for rows in known_rows])
        slots = np.flatnonzero(looker.owners == peer)
        theirs = _Joined.of([peer], parts).side(
            members, [rows.received[slots] for rows in known_rows]
        )
        generator = np.random.default_rng([seed, *members, peer])
        known, looked_at = (_drawn(one.links, generator) for one in (ours, theirs))
        if known is None or looked_at is None:
            continue
        guesses = _unknown_means(looker, peer, known_rows, theirs)
        learned.append(_scores(ours, known, known_rows, guesses[0]))
        wanted.append((_scores(theirs, looked_at, known_rows, guesses[1]), looked_at.times))
    if not learned:
        return {}
    whole = np.arange(learned[0][0].shape[1])
    views = {"edges across": whole[:_STRUCTURE]}
    if exchanges:
        views |= {"rows": whole[_STRUCTURE:], BOTH: whole}
    found: dict[str, float] = {}
    found_before: list[np.ndarray] = []
    for name, columns in views.items():
        linked, others = (
            np.concatenate([pair[at][:, columns] for pair in learned]) for at in (0, 1)
        )
        rankings: list[_Ranking] = [_ranking(linked, others), *map(_Column, range(len(columns)))]
        tried = [
            [
                ((rank(pair[0][:, columns]), rank(pair[1][:, columns])), times)
                for pair, times in wanted
            ]
            for rank in rankings
        ]
        measured = [
            [
                (auc(*pair), found_at_few_alarms(*pair), precision_at(*pair, times=times))
                for pair, times in ranked
            ]
            for ranked in tried
        ]
        best = np.mean(measured, axis=1).max(axis=0)
        if name == BOTH:
            # Who has both may look at one alone.
            best = np.maximum(best, [max(of) for of in zip(*found_before, strict=True)])
        found_before.append(best)
        found |= {f"{measure}, {name}": float(v) for measure, v in zip(MEASURES, best, strict=True)}
    return found


# ---- what an attacker has ------------------------------------------------------------------------


def _coordinates(
    own: np.ndarray | csr_array, received: np.ndarray | csr_array, seed: Sequence[int]
) -> _Rows:
    """Return an exchange's rows in at most so many main directions of the attacker's own."""
    mean = np.asarray(own.mean(axis=0)).reshape(-1)
    if own.shape[1] > MOST_COLUMNS:
        # Halko, Martinsson and Tropp, SIAM Review 2011, algorithm 4.3 with one power.
        drawn = np.random.default_rng([*seed, 0]).standard_normal((own.shape[1], MOST_COLUMNS))
        directions = np.linalg.qr(own.T @ (own @ drawn))[0]
    else:
        directions = np.eye(own.shape[1])
    ours, theirs = (np.asarray(rows @ directions) - mean @ directions for rows in (own, received))
    values, vectors = np.linalg.eigh(ours.T @ ours / len(ours))
    # Of rows that are all alike, as classes may be, nothing is to be whitened.
    least = max(_RIDGE * float(values.mean()), np.finfo(float).eps)
    return _Rows(own=ours, received=theirs, whitening=vectors / np.sqrt(np.maximum(values, least)))


def _drawn(links: csr_array, generator: np.random.Generator) -> _Pairs | None:
    """Return pairs to look at; None where there is no edge, or nothing else."""
    m = links.shape[0]
    first, second = links.nonzero()
    linked = np.stack([first, second], axis=1)[first < second]
    without = m * (m - 1) // 2 - len(linked)
    if len(linked) < _LEAST_LINKS or without < _LEAST_LINKS:
        return None
    drawn = generator.integers(0, m, (2 * _MOST_OTHERS, 2))
    drawn = np.unique(np.sort(drawn[drawn[:, 0] != drawn[:, 1]], axis=1), axis=0)
    others = drawn[~np.isin(drawn @ [m, 1], linked @ [m, 1])]
    others = others[generator.permutation(len(others))[:_MOST_OTHERS]]
    if not len(others):
        return None
    kept = linked[generator.permutation(len(linked))[:_MOST_LINKS]]
    times = without / len(others) * len(kept) / len(linked)
    return _Pairs(linked=kept, others=others, times=times)


# ---- what it makes of that -----------------------------------------------------------------------


def _unknown_means(
    looker: _Joined, peer: int, rows: Sequence[_Rows], theirs: _Side
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Guess for each node the mean of those neighbours' first rows that the other end cannot see.

    Learned on all own nodes, where it is known: ridge regression on what a peer has of a node, its
    rows and the mean of its neighbours there; what is said of an own node was learned without it.

    Returns:
        For each exchange after the first, of own nodes that the peer sees, and of the peer's.
    """
    graph = looker.graph
    is_theirs = np.zeros(graph.shape[1], dtype=bool)
    is_theirs[looker.size + np.flatnonzero(looker.owners == peer)] = True
    known, unknown = csr_array(graph[:, is_theirs]), csr_array(graph[:, ~is_theirs])
    seen = np.diff(known.indptr) > 0
    own, received = [], []
    for after in rows[1:]:
        first = np.concatenate([rows[0].own, rows[0].received])
        read = np.hstack([after.own, rows[0].own, _means(known, first[is_theirs])])
        theirs_read = np.hstack(
            [
                theirs.rows[rows.index(after)],
                theirs.rows[0],
                _means(theirs.across, rows[0].own[seen]),
            ]
        )
        fitted, solved = _regression(read, _means(unknown, first[~is_theirs]))
        own.append(fitted[seen])
        received.append(solved(theirs_read))
    return own, received


def _regression(
    read: np.ndarray, wanted: np.ndarray
) -> tuple[np.ndarray, Callable[[np.ndarray], np.ndarray]]:
    """Fit by the penalty with the least error of rows left out; return these, and what predicts."""
    centre, middle = read.mean(axis=0), wanted.mean(axis=0)
    u, s, vt = np.linalg.svd(read - centre, full_matrices=False)
    turned = u.T @ (wanted - middle)
    best: tuple[float, np.ndarray, np.ndarray] | None = None
    for penalty in _PENALTIES * max(float(np.mean(s**2)), np.finfo(float).tiny):
        shrunk = s**2 / (s**2 + penalty)
        leverage = np.minimum((u**2) @ shrunk + 1 / len(read), _MOST_LEVERAGE)[:, None]
        fitted = u @ (shrunk[:, None] * turned) + middle
        left_out = (fitted - leverage * wanted) / (1 - leverage)
        error = float(np.mean((left_out - wanted) ** 2))
        if best is None or error < best[0]:
            weights = vt.T @ (
                np.divide(shrunk, s, out=np.zeros_like(s), where=s > 0)[:, None] * turned
            )
            best = error, left_out, weights
    assert best is not None
    _, left_out, weights = best
    return left_out, lambda rows: (rows - centre) @ weights + middle


def _means(adjacency: csr_array, rows: np.ndarray) -> np.ndarray:
    counts = np.maximum(np.diff(adjacency.indptr), 1)[:, None]
    means: np.ndarray = (adjacency @ rows) / counts
    return means


def _scores(
    side: _Side, pairs: _Pairs, exchanges: Sequence[_Rows], guesses: Sequence[np.ndarray]
) -> _Scores:
    """Return (p, k) scores of linked pairs, and of others: of edges across first, then of rows."""
    degrees = np.diff(side.across.indptr).astype(float)
    rare = 1 / np.log(
        1 + np.maximum(np.bincount(side.across.indices, minlength=side.across.shape[1]), 1)
    )

    def scored(places: np.ndarray) -> np.ndarray:
        u, v = places.T
        shared = side.across[u].multiply(side.across[v])
        common, weighted = np.asarray(shared.sum(axis=1)).reshape(-1), shared @ rare
        low, high = np.minimum(degrees[u], degrees[v]), np.maximum(degrees[u], degrees[v])
        columns = [common, weighted, common / (low + high - common), np.log(low), np.log(high)]
        for rows, known in zip(side.rows, exchanges, strict=True):
            columns += _alike(rows, known.whitening, u, v)
        for guess in guesses:
            white = side.rows[0] @ exchanges[0].whitening
            of = guess @ exchanges[0].whitening
            columns.append((of[u] * white[v]).sum(axis=1) + (of[v] * white[u]).sum(axis=1))
        return np.stack(columns, axis=1)

    return scored(pairs.linked), scored(pairs.others)


def _alike(
    rows: np.ndarray, whitening: np.ndarray, u: np.ndarray, v: np.ndarray
) -> list[np.ndarray]:
    """Return how alike pairs of rows are: cosine, distance, product; of whitened rows two more."""
    white = rows @ whitening
    lengths, whole = (np.linalg.norm(one, axis=1) for one in (rows, white))
    product = (rows[u] * rows[v]).sum(axis=1)
    turned = (white[u] * white[v]).sum(axis=1)
    tiny = np.finfo(float).tiny
    distance = np.linalg.norm(rows[u] - rows[v], axis=1)
    return [
        product / np.maximum(lengths[u] * lengths[v], tiny),
        -distance,
        product,
        turned,
        turned / np.maximum(whole[u] * whole[v], tiny),
    ]


def _ranking(linked: np.ndarray, others: np.ndarray) -> _Ranking:
    """Fit a logistic regression on standardised scores and their squares; return what ranks."""
    both = np.concatenate([linked, others])
    mean, scale = both.mean(axis=0), both.std(axis=0)
    scale[scale == 0] = 1.0

    def read(scores: np.ndarray) -> np.ndarray:
        # Far beyond what was learned on, a square would decide alone.
        standard = np.clip((scores - mean) / scale, -_FARTHEST, _FARTHEST)
        return np.hstack([standard, standard**2, np.ones((len(scores), 1))])

    rows = read(both)
    signs = np.repeat([1.0, -1.0], [len(linked), len(others)])
    # Both kinds count alike.
    shares = np.repeat([0.5 / len(linked), 0.5 / len(others)], [len(linked), len(others)])

    # Of a few links little is to be learned.
    penalty = _PENALTY / len(linked)

    def loss(weights: np.ndarray) -> tuple[float, np.ndarray]:
        margins = signs * (rows @ weights)
        slopes = -signs * shares * expit(-margins)
        value = float(shares @ np.logaddexp(0, -margins) + penalty * weights @ weights)
        return value, rows.T @ slopes + 2 * penalty * weights

    start = np.zeros(rows.shape[1])
    weights = minimize(loss, start, jac=True, method="L-BFGS-B", options={"maxiter": _STEPS}).x
    return lambda scores: read(scores) @ weights
