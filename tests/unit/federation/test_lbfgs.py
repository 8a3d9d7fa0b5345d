"""The server's L-BFGS: the published recursion, its safeguards, its state."""

from __future__ import annotations

import numpy as np
import pytest

from retexo_fl.federation.lbfgs import LimitedMemory

RNG = np.random.default_rng(0)
CURVATURE = np.diag(np.geomspace(1.0, 300.0, 8))
LOWEST = RNG.normal(size=8)


def loss(point: np.ndarray) -> float:
    away = point - LOWEST
    return 0.5 * float(away @ CURVATURE @ away)


def gradient(point: np.ndarray) -> np.ndarray:
    found: np.ndarray = CURVATURE @ (point - LOWEST)
    return found


def trained(steps: int, **changes: float) -> tuple[LimitedMemory, list[np.ndarray]]:
    optimizer = LimitedMemory(np.zeros(8), **{"learning_rate": 1.0, "weight_decay": 0.0, **changes})
    points = []
    for _ in range(steps):
        points.append(optimizer.weights.copy())
        optimizer.step(gradient(points[-1]), loss(points[-1]), points[-1])
    return optimizer, points


def test_directions_are_those_of_the_whole_matrix() -> None:
    """Algorithm 7.4 computes equation 7.16 to 7.19 without the matrix."""
    optimizer = LimitedMemory(np.zeros(8), learning_rate=1e6, weight_decay=0.0)
    points, gradients = [], []
    for number in range(6):
        points.append(optimizer.weights.copy())
        gradients.append(gradient(points[-1]))
        # A loss that falls: no step is taken back.
        optimizer.step(gradients[-1], -float(number) * 1e9, points[-1])
    steps, changes = np.diff(points, axis=0), np.diff(gradients, axis=0)
    inverse = np.eye(8) * (steps[-1] @ changes[-1]) / (changes[-1] @ changes[-1])
    for step, change in zip(steps, changes, strict=True):
        rho = 1 / (step @ change)
        left = np.eye(8) - rho * np.outer(step, change)
        inverse = left @ inverse @ left.T + rho * np.outer(step, step)
    expected = points[-1] - inverse @ gradients[-1]
    np.testing.assert_allclose(optimizer.weights, expected, rtol=1e-8)


def test_a_badly_conditioned_bowl_is_left_at_its_bottom() -> None:
    optimizer, _ = trained(40)
    assert loss(optimizer.weights) < 1e-8 * loss(np.zeros(8))


def test_the_first_step_and_the_longest_are_bounded() -> None:
    _, points = trained(12, learning_rate=0.01)
    lengths = [float(np.linalg.norm(step)) for step in np.diff(points, axis=0)]
    assert lengths[0] == pytest.approx(0.01 * np.sqrt(8))
    assert max(lengths) == pytest.approx(0.05 * np.sqrt(8))


def test_a_worse_point_is_taken_back_three_times_at_most() -> None:
    optimizer = LimitedMemory(np.zeros(2), learning_rate=1.0, weight_decay=0.0)
    optimizer.step(np.array([1.0, 0.0]), 1.0, optimizer.weights)
    first = optimizer.weights.copy()
    for number in range(1, 4):
        optimizer.step(np.array([-1.0, 0.0]), 2.0, optimizer.weights)
        np.testing.assert_allclose(optimizer.weights, first * 0.3**number)
    optimizer.step(np.array([-1.0, 0.0]), 2.0, optimizer.weights)
    # Accepted: half way back, where the gradient is zero if it is linear between both points.
    np.testing.assert_allclose(optimizer.weights, first * 0.3**3 / 2)


@pytest.mark.parametrize(("after", "is_worse"), [(1.0200, False), (1.0202, True), (-1.0, False)])
def test_a_point_is_worse_by_two_hundredths_and_a_little(after: float, is_worse: bool) -> None:
    optimizer = LimitedMemory(np.zeros(2), learning_rate=1.0, weight_decay=0.0)
    optimizer.step(np.array([1.0, 0.0]), 1.0, optimizer.weights)
    first = optimizer.weights.copy()
    optimizer.step(np.array([1.0, 0.0]), after, first)
    assert np.allclose(optimizer.weights, 0.3 * first) is is_worse


def test_losses_that_the_decay_alone_orders_are_compared_with_it() -> None:
    """The second point is further out: 0.5 * 0.1 * 16 more than the first, at equal losses."""
    optimizer = LimitedMemory(np.zeros(2), learning_rate=1.0, weight_decay=0.1)
    here, there = np.zeros(2), np.array([4.0, 0.0])
    optimizer.step(np.array([1.0, 0.0]), 1.0, here)
    optimizer.step(np.array([1.0, 0.0]), 1.0, there)
    np.testing.assert_allclose(optimizer.weights, 0.3 * there)
    # And at a loss that is lower by as much it is no worse.
    optimizer.step(np.array([1.0, 0.0]), 0.2, there)
    assert not np.allclose(optimizer.weights, 0.3 * there)


def test_weight_decay_belongs_to_the_function() -> None:
    decayed, _ = trained(60, weight_decay=1.0)
    expected = np.linalg.solve(CURVATURE + np.eye(8), CURVATURE @ LOWEST)
    np.testing.assert_allclose(decayed.weights, expected, rtol=1e-5)


def test_the_last_twelve_pairs_are_kept() -> None:
    optimizer, points = trained(20)
    state = optimizer.state()
    kept = [state[f"lbfgs.step.{number}"] for number in range(12)]
    assert "lbfgs.step.12" not in state
    np.testing.assert_array_equal(kept, np.diff(points, axis=0)[-12:])


@pytest.mark.parametrize("steps", [0, 1, 7, 20])
def test_a_restored_state_goes_on_with_the_same_bits(steps: int) -> None:
    optimizer, _ = trained(steps)
    rates = {"learning_rate": 1.0, "weight_decay": 0.0}
    other = LimitedMemory(optimizer.weights.copy(), **rates)
    other.load_state({name: item.copy() for name, item in optimizer.state().items()})
    for _ in range(5):
        for one in (optimizer, other):
            one.step(gradient(one.weights), loss(one.weights), one.weights)
        np.testing.assert_array_equal(optimizer.weights, other.weights)


def test_a_gradient_of_zero_moves_nothing() -> None:
    optimizer = LimitedMemory(np.ones(3, np.float32), learning_rate=1.0, weight_decay=0.0)
    for _ in range(3):
        optimizer.step(np.zeros(3, np.float32), 0.0, optimizer.weights)
    np.testing.assert_array_equal(optimizer.weights, np.ones(3))
    assert optimizer.weights.dtype == np.float32
