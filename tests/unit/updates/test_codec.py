"""The codec that sends updates and weights as they are."""

from __future__ import annotations

from retexo_fl.updates import PLAIN
from tests.support.update_codec_contract import UpdateCodecContract


class TestPlainUpdates(UpdateCodecContract):
    codec = PLAIN
