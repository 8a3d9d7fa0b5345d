"""Control variates of clients that miss rounds."""

from __future__ import annotations

import numpy as np

from retexo_fl.methods.pieces.local_steps.script import ControlVariates


def test_a_client_that_missed_a_round_is_corrected_by_its_last() -> None:
    controls = ControlVariates({0: 1, 1: 3}, {}, step_length=0.5)
    weights = np.array([7.0, 8.0])
    controls.begin()
    assert np.array_equal(controls.beside(weights, 1), weights)
    controls.learn(0, np.array([-1.0, 0.0]))
    controls.learn(1, np.array([0.0, -2.0]))
    # They are (2, 0) and (0, 4), of all (0.5, 3).
    controls.begin()
    assert np.array_equal(controls.beside(weights, 0), [7.0, 8.0, -1.5, 3.0])
    assert np.array_equal(controls.beside(weights, 1), [7.0, 8.0, 0.5, -1.0])
    controls.learn(0, np.array([-1.0, -1.0]))
    # They are (3.5, -1) and (0, 4), of all (0.875, 2.75).
    controls.begin()
    assert np.array_equal(controls.beside(weights, 0), [7.0, 8.0, -2.625, 3.75])
    assert np.array_equal(controls.beside(weights, 1), [7.0, 8.0, 0.875, -1.25])
