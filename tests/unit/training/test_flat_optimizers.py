from __future__ import annotations

import numpy as np
import torch

from retexo_fl.training.flat_optimizers import FlatAdam


def reference(
    weights: np.ndarray, gradients: list[np.ndarray], rate: float, decay: float
) -> np.ndarray:
    """Kingma and Ba, algorithm 1, with the decay coupled into the gradient."""
    first, second = np.zeros_like(weights), np.zeros_like(weights)
    for step, raw in enumerate(gradients, start=1):
        gradient = raw + decay * weights
        first = 0.9 * first + 0.1 * gradient
        second = 0.999 * second + 0.001 * gradient**2
        unbiased = np.sqrt(second / (1 - 0.999**step)) + 1e-8
        weights = weights - rate * (first / (1 - 0.9**step)) / unbiased
    return weights


def gradients(count: int) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.normal(size=6) for _ in range(count)]


def test_steps_equal_the_published_algorithm() -> None:
    start = np.linspace(-1, 1, 6)
    adam = FlatAdam(start, learning_rate=0.05, weight_decay=0.01)
    for gradient in gradients(5):
        adam.step(gradient)
    np.testing.assert_allclose(adam.weights, reference(start, gradients(5), 0.05, 0.01), rtol=1e-12)


def test_restored_state_goes_on_with_the_same_bits() -> None:
    one = FlatAdam(np.ones(6), learning_rate=0.1, weight_decay=1e-3)
    steps = gradients(7)
    for gradient in steps[:3]:
        one.step(gradient)
    other = FlatAdam(one.weights, learning_rate=0.1, weight_decay=1e-3)
    other.load_state({name: item.copy() for name, item in one.state().items()})
    for gradient in steps[3:]:
        one.step(gradient)
        other.step(gradient)
    np.testing.assert_array_equal(one.weights, other.weights)


def test_load_state_of_nothing_starts_anew() -> None:
    adam = FlatAdam(np.ones(2), learning_rate=0.1, weight_decay=0.0)
    adam.load_state({})
    adam.step(np.ones(2))
    # The first step of Adam is the learning rate against the gradient's sign.
    np.testing.assert_allclose(adam.weights, [0.9, 0.9], rtol=1e-7)


def test_steps_equal_pytorchs_class() -> None:
    start = np.linspace(-1, 1, 6).astype(np.float32)
    ours = FlatAdam(start, learning_rate=0.05, weight_decay=0.01)
    theirs = torch.nn.Parameter(torch.from_numpy(start.copy()))
    adam = torch.optim.Adam([theirs], lr=0.05, weight_decay=0.01, foreach=False)
    for gradient in gradients(5):
        ours.step(gradient.astype(np.float32))
        theirs.grad = torch.from_numpy(gradient.astype(np.float32))
        adam.step()
    np.testing.assert_array_equal(ours.weights, theirs.detach().numpy())


def test_start_weights_are_copied() -> None:
    start = np.ones(2)
    FlatAdam(start, learning_rate=0.1, weight_decay=0.0).step(np.ones(2))
    np.testing.assert_array_equal(start, [1.0, 1.0])
