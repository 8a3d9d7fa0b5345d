"""What `retexo plan` says about cohorts: how many clients a round's sums are over, and how safe.

All members of a cohort must answer, or none is in a sum: if each is there ``up`` of the time, the
cohort is in ``up ** members`` of the sums.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from functools import lru_cache
from math import ceil, comb
from typing import Any, Final

from retexo_fl.masking.agreement import LEAST, Agreement

#: How much of the time a machine is there.
UPS: Final = (0.99, 0.95, 0.9, 0.8)
#: Shares of all owners that work with the server, without anybody knowing which they are.
UNKNOWN: Final = (0.05, 0.1, 0.2)
#: Largest chance that a draw leaves a cohort with fewer than the least honest clients.
_MOST_CHANCE: Final = Fraction(1, 2**40)
_FLAKY: Final = 0.9
#: Share of all clients that are in a sum; with fewer, masks alone are not enough.
_FEW: Final = 0.3


def cohort_facts(agreement: Agreement, roles: Mapping[int, frozenset[str]]) -> dict[str, Any]:
    """Return what cohorts cost, as JSON has it.

    Args:
        agreement: Of the planned run.
        roles: By client, of which uses it has data.
    """
    sizes = [len(cohort.members) for cohort in agreement.cohorts]
    clients = sum(sizes)
    unknown = {share: size_for(clients, share) for share in UNKNOWN}
    return {
        "sizes": sizes,
        "tolerated": agreement.tolerated,
        "share": {str(up): sum(n * up**n for n in sizes) / clients for up in UPS},
        "unknown": {
            str(share): None
            if size is None
            else {"size": size, "share": {str(up): up**size for up in UPS}}
            for share, size in unknown.items()
        },
        "lost": {
            use: count
            for use in ("train", "validation", "test")
            if (count := _lost(agreement, roles, use))
        },
    }


def fewest_train_nodes(agreement: Agreement, counts: Mapping[int, Mapping[str, int]]) -> int:
    """Return how many train nodes the smallest sum is over; 0 where no sum is over any.

    Args:
        agreement: Of the planned run.
        counts: By client, how many nodes it has of each use.
    """
    summed = [cohort.members for cohort in agreement.cohorts if "train" in cohort.uses]
    return min((sum(counts[client]["train"] for client in of) for of in summed), default=0)


def is_not_enough(facts: Mapping[str, Any]) -> bool:
    """Return whether masks leave few clients in a sum where owners are unknown and machines flaky.

    Args:
        facts: Of :func:`cohort_facts`.
    """
    of_tenth = facts["unknown"]["0.1"]
    return of_tenth is None or of_tenth["share"][str(_FLAKY)] < _FEW


@lru_cache(maxsize=64)
def size_for(clients: int, share: float) -> int | None:
    """Return how many clients a drawn cohort needs if some work with the server, nobody knows who.

    The chance that any cohort has fewer than three honest clients is 2^-40 at most.

    Args:
        clients: How many there are.
        share: Of them, rounded up, those that work with the server.

    Returns:
        None where all of them together are too few.
    """
    bad = ceil(share * clients)
    for size in range(LEAST, clients + 1):
        few = sum(comb(clients - bad, honest) * comb(bad, size - honest) for honest in range(LEAST))
        if Fraction(clients * few, size * comb(clients, size)) <= _MOST_CHANCE:
            return size
    return None


def _lost(agreement: Agreement, roles: Mapping[int, frozenset[str]], use: str) -> int:
    """Return how many clients have data of a use that their cohort's sums leave out."""
    return sum(
        use in roles[client] and use not in cohort.uses
        for cohort in agreement.cohorts
        for client in cohort.members
    )
