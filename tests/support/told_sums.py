"""What answers under masks tell together: linear algebra, exact, over masks that nobody knows.

An answer is what a client adds, plus and minus masks. A server may combine all that it was ever
answered; only combinations tell something in which all masks that it does not know cancel. That
weights differ is no hindrance: one function has many of them. So what a client adds is a variable
for each of its inputs, whatever was asked.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, combinations
from typing import Final, TypeAlias

import numpy as np

#: Beyond every minor of such small matrices, so a rank modulo it is that over the rationals.
_PRIME: Final = 2**31 - 1

#: Who adds, and its inputs.
Variable: TypeAlias = tuple[int, Hashable]
#: A combination of variables, without those of coefficient 0.
Row: TypeAlias = frozenset[tuple[Variable, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """One answer.

    Attributes:
        added: By use, whether the client brought data; else it added zeros.
        variable: What it added.
        masks: By seed, 1 where the mask was added, -1 where it was subtracted; those alone that the
            server does not know.
    """

    added: Mapping[str, bool]
    variable: Variable
    masks: Mapping[bytes, int]


def rows_of(answers: Sequence[Told], use: str) -> set[Row]:
    """Return combinations of answers that span all that they tell of a use."""
    found: set[Row] = set()
    for joined in _joined(answers):
        seeds = sorted({seed for answer in joined for seed in answer.masks})
        variables = sorted({answer.variable for answer in joined}, key=repr)
        table = np.zeros((len(joined), len(seeds) + len(variables)), np.int64)
        for row, answer in zip(table, joined, strict=True):
            for seed, sign in answer.masks.items():
                row[seeds.index(seed)] += sign
            row[len(seeds) + variables.index(answer.variable)] += answer.added.get(use, False)
        reduced, pivots = _reduced(table, len(seeds))
        for row in reduced[pivots:, len(seeds) :]:
            kept = frozenset((v, int(k)) for v, k in zip(variables, row, strict=True) if k)
            found |= {kept} if kept else set()
    return found


def fewest(rows: Collection[Row], honest: Collection[int], least: int) -> tuple[int, ...] | None:
    """Return some clients, fewer than ``least``, of whom alone a combination of rows is; or None.

    Args:
        rows: What is told of a use.
        honest: Whose variables count: the server knows those of all others.
        least: How many must be in every combination.
    """
    variables = sorted({v for row in rows for v, _ in row if v[0] in honest}, key=repr)
    table = np.array(
        [[dict(row).get(variable, 0) for variable in variables] for row in rows], np.int64
    ).reshape(len(rows), len(variables))
    full = _rank(table)
    clients = sorted({client for client, _ in variables})
    some = chain.from_iterable(combinations(clients, size) for size in range(1, least))
    for chosen in some:
        kept = [at for at, (client, _) in enumerate(variables) if client not in chosen]
        if _rank(table[:, kept]) < full:
            return chosen
    return None


def _joined(answers: Iterable[Told]) -> list[list[Told]]:
    """Return answers in groups that share no mask."""
    groups: list[tuple[set[bytes], list[Told]]] = []
    for answer in answers:
        seeds, members = {*answer.masks}, [answer]
        apart = []
        for known in groups:
            if known[0] & seeds:
                seeds |= known[0]
                members += known[1]
            else:
                apart.append(known)
        groups = [*apart, (seeds, members)]
    return [members for _, members in groups]


def _rank(table: np.ndarray) -> int:
    return _reduced(table, table.shape[1])[1]


def _reduced(table: np.ndarray, columns: int) -> tuple[np.ndarray, int]:
    """Clear the first columns of all rows but as many as they have rank; return that, too."""
    rows, found = table % _PRIME, 0
    for column in range(columns):
        nonzero = np.flatnonzero(rows[found:, column])
        if not len(nonzero):
            continue
        pivot = found + int(nonzero[0])
        rows[[found, pivot]] = rows[[pivot, found]]
        rows[found] = rows[found] * pow(int(rows[found, column]), -1, _PRIME) % _PRIME
        factors = rows[found + 1 :, column].copy()
        rows[found + 1 :] = (rows[found + 1 :] - np.outer(factors, rows[found])) % _PRIME
        found += 1
    return rows, found
