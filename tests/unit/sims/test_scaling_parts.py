from __future__ import annotations

import pytest

from retexo_fl.errors import EngineFailed
from sims import beyond as beyond_module
from sims.beyond import CLIENTS, EDGES, LinkStateCost, beyond, beyond_rows, link_state_cost
from sims.exponents import Growth, beyond_smallest
from sims.measured_process import measure_command
from sims.recipes.scaling import AXES

pytestmark = pytest.mark.slow

MOST_BYTES = 8 * 10**9


@pytest.mark.parametrize("exponent", [0.5, 1.0, 2.0])
def test_exponent_is_that_of_what_is_beyond_the_constant_part(exponent: float) -> None:
    sizes = [10.0, 1e3, 1e4, 1e5]
    growth = Growth.of({10.0: 7.0} | {size: 7 + (size - 10) ** exponent for size in sizes[1:]})
    assert growth is not None
    assert growth.exponent == pytest.approx(exponent)
    assert growth.error == pytest.approx(0, abs=1e-7)
    assert growth.steepest == pytest.approx(exponent)


def test_a_spread_and_the_steepest_part_are_told() -> None:
    growth = Growth.of({0: 0.0, 1: 1.0, 10: 10.0, 100: 1000.0})
    assert growth is not None
    assert growth.exponent == pytest.approx(1.5)
    assert growth.steepest == pytest.approx(2.0)
    assert growth.error == pytest.approx((1 / 12) ** 0.5)


def test_points_that_cost_hardly_more_than_the_smallest_tell_nothing() -> None:
    costs = {1.0: 10.0, 10.0: 10.1, 100.0: 20.0, 1000.0: 110.0}
    assert beyond_smallest(costs) == [(99, 10.0), (999, 100.0)]
    assert Growth.of({1: 10.0, 10: 10.1, 100: 20.0}) is None


def test_a_command_is_measured_in_a_process_of_its_own() -> None:
    used = measure_command(["--version"], timeout_s=60, most_bytes=MOST_BYTES)
    assert 0.01 < used.cpu_s < 30
    # Of this process alone, not of the one that started it, which has loaded torch.
    assert 3e6 < used.peak_bytes < 100e6


def test_a_command_that_fails_or_takes_too_long_is_named() -> None:
    with pytest.raises(EngineFailed, match=r"retexo run --layers 0: exit code 2: "):
        measure_command(["run", "--layers", "0"], timeout_s=60, most_bytes=MOST_BYTES)
    with pytest.raises(EngineFailed, match=r"retexo --version: no end within 0\.01 s"):
        measure_command(["--version"], timeout_s=0.01, most_bytes=MOST_BYTES)


@pytest.mark.parametrize("name", AXES)
def test_every_axis_ascends_from_a_smallest_point(name: str) -> None:
    axis = AXES[name]
    for sizes in (axis.sizes, axis.quick):
        assert list(sizes) == sorted(set(sizes))
        assert len(sizes) >= 3
    assert ("{size}" in axis.graph) == (axis.key is None)
    assert set(axis.linear) <= set(axis.measures)


def test_bytes_beyond_one_machine_are_those_of_the_closed_forms() -> None:
    found = beyond(1.0)
    # Hardly two of a node's neighbours are of one client: a vector for each end of an edge.
    assert 0.99 * 2 * EDGES < found.vectors <= 2 * EDGES
    # Features, then two layers of 256. A layer has weights and a bias, hidden ones a norm besides.
    assert found.between_bytes == found.vectors * 4 * (100 + 256 + 256) / CLIENTS
    stage = [(100 + 3) * 256, (256 + 3) * 256, (256 + 1) * 47]
    heads = [(256 + 1) * 47, (256 + 1) * 47, 0]
    parameters = [own + head for own, head in zip(stage, heads, strict=True)]
    rounds = beyond_module.ROUNDS
    assert found.server_bytes == 4 * CLIENTS * (2 * rounds + 2) * sum(parameters)
    assert found.superlink_bytes == 4 * CLIENTS * max(parameters)
    assert found.round_bytes == 2 * found.superlink_bytes
    assert beyond(0.1).vectors == pytest.approx(found.vectors / 10)
    assert beyond(0.1).server_bytes == found.server_bytes


def test_superlinks_follow_from_what_a_node_takes() -> None:
    cost = LinkStateCost(poll_s=3e-3, heartbeat_s=30e-3)
    assert cost.of_a_node == pytest.approx(2e-3)
    figures = {row.metric.split(": ")[1:][-1]: row.ours for row in beyond_rows(cost, 5e4)}
    assert figures["SuperLinks at least"] == 200
    assert figures["ServerApp, what it keeps of clients, at most"] == pytest.approx(5.0)


@pytest.mark.filterwarnings("ignore:No path_separator:DeprecationWarning")
def test_flowers_link_state_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beyond_module, "_MEASURED_NODES", 5)
    cost = link_state_cost()
    assert 1e-6 < cost.heartbeat_s < 1
    assert 1e-6 < cost.poll_s < 1
