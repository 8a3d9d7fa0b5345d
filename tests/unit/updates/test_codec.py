"""The codec that sends weights as they are, and updates without their zeros."""

from __future__ import annotations

from retexo_fl.updates import PlainUpdates
from tests.support.update_codec_contract import UpdateCodecContract


class TestPlainUpdates(UpdateCodecContract):
    codec = PlainUpdates()


class TestUpdatesWithTheirZeros(UpdateCodecContract):
    codec = PlainUpdates(keeps_zeros=True)
