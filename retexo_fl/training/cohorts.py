"""Whose answers are added up together in a simulation under masks, by what clients hold."""

from __future__ import annotations

from collections.abc import Mapping

from retexo_fl.config import RunConfig
from retexo_fl.masking.agreement import USES, Agreement, simulated


def brought(config: RunConfig, counts: Mapping[str, int]) -> frozenset[str]:
    """Return the uses that a client brings data of.

    Args:
        config: Of the run.
        counts: How many nodes, or pairs, it has of each.
    """
    # With vectors that cross in rounds, gradients come from peers' nodes, too.
    gives_all = config.traits.exchanges_in_rounds
    return frozenset(use for use in USES if counts.get(use) or (gives_all and use == "train"))


def simulated_agreement(
    config: RunConfig, counts: Mapping[int, Mapping[str, int]], *, tolerated: int = 0
) -> Agreement:
    """Return the cohorts of a simulation.

    Args:
        config: Of the run.
        counts: By client, how many nodes, or pairs, it has of each use; a client of whom that is
            not known may bring any.
        tolerated: See :class:`.Agreement`.

    Raises:
        AgreementError: There are too few clients, or ``cohort-size`` is too small.
    """
    every = dict.fromkeys(USES, 1)
    roles = {c: brought(config, counts.get(c, every)) for c in range(config.clients)}
    return simulated(roles, size=config.cohort_size, seed=config.seed, tolerated=tolerated)


def terms_of(
    agreement: Agreement, config: RunConfig, counts: Mapping[int, Mapping[str, int]]
) -> int:
    """Return how many clients add an update that is not zero."""
    training = agreement.members("train")
    return sum("train" in brought(config, counts[client]) for client in training)
