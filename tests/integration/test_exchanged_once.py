"""What a client sends is encoded once, and what it gets decoded once, however often it is asked."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, Final

import pytest

from retexo_fl.channels import MemoryChannel
from retexo_fl.client import peer_exchange
from tests.support.runs import configured, train_over

#: A basis has the first exchange published twice; what crosses later is what a layer reads.
_LEAN: Final[dict[str, Any]] = {
    **{"clients": 3, "rounds": 2, "dropout": 0.0, "row_bits": 8},
    **{"basis": "supervised", "basis_blocks": 2},
}


@pytest.mark.parametrize(
    ("model", "basis_rows", "exchanges"), [("gcn", "sums", 2), ("sage", "own", 2)]
)
def test_each_block_is_encoded_and_decoded_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str, basis_rows: str, exchanges: int
) -> None:
    calls: Counter[tuple[str, object]] = Counter()
    for name in ("encode_block", "decode_block"):
        coded = getattr(peer_exchange, name)

        def counting(
            block: Any, *args: Any, _name: str = name, _coded: Any = coded, **k: Any
        ) -> Any:
            calls[_name, block.key] += 1
            return _coded(block, *args, **k)

        monkeypatch.setattr(peer_exchange, name, counting)
    config = configured(tmp_path / "run", model=model, basis_rows=basis_rows, **_LEAN)
    train_over(config, MemoryChannel())
    assert set(calls.values()) == {1}
    assert len(calls) == 2 * exchanges * config.clients * (config.clients - 1)
