"""What every aggregator must satisfy; a new one's test inherits :class:`AggregatorContract`.

One that is to stand lying clients inherits :class:`RobustAggregatorContract`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from retexo_fl.errors import ConfigurationError, RemoteProtocolError, RoundIncomplete
from retexo_fl.federation.aggregators import Aggregator, RoundFacts, make_aggregator

SIZE = 500
#: A client's update sum and the number of its train nodes.
Update = tuple[np.ndarray, int]


def round_facts(size: int, dtype: str = "float64", number: int = 1) -> RoundFacts:
    """Return a round of updates of some size."""
    return RoundFacts(seed=3, stage=0, number=number, size=size, dtype=dtype)


def combined(aggregator: Aggregator, updates: Sequence[Update], number: int = 1) -> np.ndarray:
    """Return what an aggregator makes of a round; the updates are read-only, as in a training."""
    total = updates[0][0]
    aggregator.start(round_facts(len(total), str(total.dtype), number))
    for client, (update_sum, count) in enumerate(updates):
        seen = update_sum.view()
        seen.flags.writeable = False
        aggregator.add(client, seen, count)
    return aggregator.finish()


def means(*rows: Sequence[float] | np.ndarray) -> list[Update]:
    """Return updates of clients with one train node each."""
    return [(np.array(row, dtype=np.float64), 1) for row in rows]


def honest_updates(clients: int, dtype: str = "float64", seed: int = 0) -> list[Update]:
    """Return updates that differ in noise and count, around a direction of length one."""
    rng = np.random.default_rng(seed)
    updates = []
    for client in range(clients):
        count = 3 + client % 4
        mean = honest_direction() + rng.normal(size=SIZE) / SIZE**0.5
        updates.append(((mean * count).astype(dtype), count))
    return updates


def honest_direction() -> np.ndarray:
    """Return the (SIZE,) update of length one that the honest clients mean."""
    return np.full(SIZE, SIZE**-0.5)


class AggregatorContract:
    """Set ``name``, as a configuration has it, in a subclass whose name begins with ``Test``.

    Attributes:
        name: Of the aggregator; of one with a limit, one that does not bite here.
        clients: How many there are.
    """

    name: str
    clients: int = 10

    @pytest.mark.parametrize("dtype", ["float32", "float64"])
    def test_equal_updates_give_that_update(self, dtype: str) -> None:
        mean = np.random.default_rng(1).normal(size=SIZE)
        updates = [((mean * count).astype(dtype), count) for count in range(1, self.clients + 1)]
        result = combined(make_aggregator(self.name), updates)
        np.testing.assert_allclose(result, mean, rtol=1e-5 if dtype == "float32" else 1e-12)

    @pytest.mark.parametrize("dtype", ["float32", "float64"])
    def test_result_is_an_array_of_its_own(self, dtype: str) -> None:
        updates = honest_updates(self.clients, dtype)
        result = combined(make_aggregator(self.name), updates)
        assert (result.shape, str(result.dtype)) == ((SIZE,), dtype)
        assert result.flags.writeable
        assert not any(np.shares_memory(result, update) for update, _ in updates)

    def test_same_round_gives_the_same_bits(self) -> None:
        updates = honest_updates(self.clients, "float32")
        results = [combined(make_aggregator(self.name), updates) for _ in range(2)]
        assert results[0].tobytes() == results[1].tobytes()

    def test_nothing_is_kept_from_round_to_round(self) -> None:
        # A training that is resumed has an aggregator that saw no round before.
        used, fresh = make_aggregator(self.name), make_aggregator(self.name)
        combined(used, honest_updates(self.clients, seed=1), number=1)
        later = honest_updates(self.clients, seed=2)
        assert combined(used, later, 2).tobytes() == combined(fresh, later, 2).tobytes()

    def test_client_without_train_nodes_changes_nothing(self) -> None:
        updates = honest_updates(self.clients)
        without = combined(make_aggregator(self.name), updates)
        aside: Update = (np.zeros(SIZE), 0)
        result = combined(make_aggregator(self.name), [*updates[:2], aside, *updates[2:]])
        assert result.tobytes() == without.tobytes()

    def test_round_without_any_train_node_is_refused(self) -> None:
        with pytest.raises(RemoteProtocolError, match="nothing to average"):
            combined(make_aggregator(self.name), [(np.zeros(SIZE), 0)] * self.clients)

    def test_too_few_clients_are_refused_by_name(self) -> None:
        aggregator = make_aggregator(self.name)
        least = aggregator.least_clients
        assert 1 <= least <= self.clients
        aggregator.check_clients(least)
        with pytest.raises(ConfigurationError, match=f"aggregator: '{self.name}' needs updates"):
            aggregator.check_clients(least - 1)
        if least > 1:
            with pytest.raises(RoundIncomplete, match=f"{least} clients with train nodes or more"):
                combined(aggregator, honest_updates(least - 1))

    def test_fewest_clients_are_enough(self) -> None:
        aggregator = make_aggregator(self.name)
        assert np.isfinite(combined(aggregator, honest_updates(aggregator.least_clients))).all()


class RobustAggregatorContract(AggregatorContract):
    """For aggregators that one lying client of ten must not lead astray."""

    @pytest.mark.parametrize("liar", [0, 4, 9])
    @pytest.mark.parametrize("factor", [-10.0, -1000.0, 0.0])
    def test_one_false_update_is_outvoted(self, liar: int, factor: float) -> None:
        updates = honest_updates(self.clients)
        # It does what serves it best: the direction of all, turned round.
        updates[liar] = (factor * honest_direction() * 3, 3)
        result = combined(make_aggregator(self.name), updates)
        cosine = float(result @ honest_direction() / np.linalg.norm(result))
        assert cosine > 0.5
        assert np.linalg.norm(result) < 2

    @pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
    def test_one_update_that_is_not_finite_is_outvoted(self, value: float) -> None:
        updates = honest_updates(self.clients)
        updates[2] = (np.full(SIZE, value), 3)
        assert np.isfinite(combined(make_aggregator(self.name), updates)).all()

    def test_counts_weigh_nothing(self) -> None:
        updates = honest_updates(self.clients)
        lying = list(updates)
        lying[6] = (updates[6][0] * 2.0**20, updates[6][1] * 2**20)
        results = [combined(make_aggregator(self.name), each) for each in (updates, lying)]
        np.testing.assert_array_equal(results[0], results[1])
