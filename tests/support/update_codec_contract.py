"""What every update codec must satisfy; a new one's test inherits :class:`UpdateCodecContract`."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from retexo_fl.updates import UpdateCodec, UpdateKey

KEY = UpdateKey(seed=3, job="job-0123456789ab", stage=1, round=2, client=4)


def values(dtype: str) -> np.ndarray:
    """Return read-only values of all magnitudes, zeros among them."""
    rng = np.random.default_rng(5)
    made = (rng.normal(size=257) * 10.0 ** rng.integers(-12, 12, size=257)).astype(dtype)
    made[::7] = 0.0
    made.flags.writeable = False
    return made


@pytest.mark.parametrize("dtype", ["float32", "float64"])
class UpdateCodecContract:
    """Set ``codec`` in a subclass named ``Test...``, and ``exact`` False if it loses something."""

    codec: UpdateCodec
    exact = True

    def test_what_comes_back_has_the_form_of_what_was_sent(self, dtype: str) -> None:
        sent = values(dtype)
        steps = self.codec.steps(self.codec.measure(sent, sent), b"")
        for known in (b"", steps):
            coded = self.codec.encode_update(sent, KEY, known)
            decoded = self.codec.decode_update(coded, KEY, known)
            whole = decoded if isinstance(decoded, np.ndarray) else decoded.dense()
            self._same_form(whole, sent)
        weights = self.codec.weights
        self._same_form(weights.decode(weights.encode(sent, None)), sent)

    def _same_form(self, decoded: np.ndarray, sent: np.ndarray) -> None:
        assert decoded.shape == sent.shape
        assert decoded.dtype == sent.dtype
        assert not self.exact or decoded.tobytes() == sent.tobytes()

    def test_what_crosses_is_flat_and_follows_from_the_arguments(self, dtype: str) -> None:
        sent = values(dtype)
        coded = [self.codec.encode_update(sent, KEY, b"") for _ in range(2)]
        # Another client's update between the two, as in an answer that is given again.
        self.codec.encode_update(sent, replace(KEY, client=5, round=9), b"")
        coded.append(self.codec.encode_update(sent, KEY, b""))
        assert {array.ndim for array in coded} == {1}
        assert len({array.tobytes() for array in coded}) == 1
        down = [self.codec.weights.encode(sent, None) for _ in range(2)]
        assert down[0].tobytes() == down[1].tobytes()

    def test_weights_that_clients_hold_come_back_whatever_the_codec_loses(self, dtype: str) -> None:
        sent = values(dtype)
        weights = self.codec.weights
        held = sent if weights.sends_changes else None
        coded = weights.encode(sent, held)
        assert bool(weights.changed(coded)) == weights.sends_changes
        assert weights.decode(coded, held).tobytes() == sent.tobytes()
        assert not weights.sends_changes or coded.nbytes < sent.nbytes / 50
