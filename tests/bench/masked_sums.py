"""What masks cost: a client, the server, bytes; beside the parts of Flower's SecAgg+.

The protocol alone, with updates of 0.7 million values; then whole trainings in this process, with
masks and without. SecAgg+ of Flower (the legacy API) is timed by its own functions for as many
neighbours as a cohort has: quantisation, pair masks, shares of two secrets.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

from retexo_fl.masking.streams import Sums
from retexo_fl.updates import UpdateKey
from retexo_fl.updates.masked import MaskedUpdates
from tests.bench.measure import Spread
from tests.bench.outcome import Outcome, Row
from tests.support.masked_sums import MaskedClients, sums_of
from tests.support.runs import events_of, train

_VALUES: Final = 700_000
#: Of all cohorts.
_CLIENTS: Final = 100
#: A masked round of ten clients in one process may take so much longer.
_MOST_LONGER: Final = 1.25
_TRAININGS: Final[dict[str, dict[str, Any]]] = {
    "32 bits": {},
    "8 bits": {"update_bits": 8, "weight_bits": 8},
    "lean": {
        **{"basis": "supervised", "basis_rows": "sums", "basis_blocks": 7},
        **{"update_bits": 8, "weight_bits": 8, "hidden": 64},
    },
}


def run(quick: bool, data_dir: Path | None) -> Outcome:
    """Time masks in cohorts of some sizes, then trainings of ten clients."""
    sizes = (3, 5) if quick else (5, 18, 65)
    values = 2000 if quick else _VALUES
    times: list[Row] = []
    ratios: list[Row] = []
    for size in sizes:
        found, name = _protocol(size, values, samples=7), f"cohorts of {size}"
        flower = _secagg_plus(size - 1, values, samples=3)
        times += [
            _row(f"{name}: client, CPU", "ms", found["client"]),
            _row(f"{name}: its key streams alone, CPU", "ms", found["streams"]),
            _row(f"{name}: server adds one, CPU", "ms", found["add"]),
            _row(f"{name}: up, each client", "kB", found["bytes"]),
            _row(f"{name}: client of SecAgg+, CPU", "ms", flower),
        ]
        ratios.append(
            _row(f"{name}: client of SecAgg+ / ours", "x", _over(flower, found["client"]))
        )
    ratios += _trainings(data_dir, repeats=3 if quick else 5, quick=quick)
    setting = {"values": values, "cohorts": sizes, "clients": _CLIENTS, "update bits": 32}
    return Outcome(name="masked_sums", setting=setting, ratios=ratios, times=times)


def _protocol(size: int, values: int, *, samples: int) -> dict[str, list[float]]:
    """Return samples of milliseconds and kilobytes, of a cohort of so many."""
    masked, codec = MaskedClients(size), MaskedUpdates()
    update = np.random.default_rng(0).normal(size=values).astype(np.float32)
    steps = codec.first_steps(values, most_train=100, terms=_CLIENTS)
    shared, _ = codec.shared(steps)
    found: dict[str, list[float]] = {"client": [], "streams": [], "add": []}

    def answer(client: int, number: int) -> Sums:
        key = UpdateKey(seed=0, job="bench", stage=0, round=1, client=client)
        narrow, wide = np.split(codec.encode_update(update, key, steps), [values])
        asked = masked.label(round_number=number)
        return masked.holders[client].hide(asked, sums_of(shared.ring, narrow, wide))

    total: Sums | None = None
    for number in range(1, samples + 1):
        client = number % size
        hidden = _timed(found["client"], partial(answer, client, number))
        _timed(found["streams"], partial(_streams, size - 1, 4 * values))
        total = hidden.form.zeros() if total is None else total
        packed = shared.ring.pack(hidden.narrow)
        _timed(found["add"], partial(_add, total, hidden, packed, values))
    return {
        **{name: [1e3 * one for one in of] for name, of in found.items()},
        "bytes": [len(packed) / 1e3] * 2,
    }


def _streams(pairs: int, size: int) -> None:
    """Make the key streams of masks with so many clients, as pieces that stay in the cache."""
    zeros = memoryview(bytes(2**17))
    room = bytearray(2**17 + 64)
    for _ in range(pairs):
        write = Cipher(algorithms.ChaCha20(bytes(32), bytes(16)), mode=None).encryptor().update_into
        for begin in range(0, size, len(zeros)):
            write(zeros[: size - begin], room)


def _add(total: Sums, hidden: Sums, packed: np.ndarray, values: int) -> None:
    total.add(replace(hidden, narrow=total.form.ring.unpack(packed, values)))


def _secagg_plus(neighbours: int, values: int, *, samples: int) -> list[float]:
    """Return samples of milliseconds of a client's work for one round of Flower's SecAgg+.

    Its seeds are cut to 32 bits, as there.
    """
    from flwr.common.secure_aggregation.crypto.shamir import create_shares
    from flwr.common.secure_aggregation.quantization import quantize
    from flwr.common.secure_aggregation.secaggplus_utils import pseudo_rand_gen

    update = np.random.default_rng(0).normal(size=values)
    threshold, holders = max(2, (neighbours + 1) * 2 // 3), neighbours + 1

    def work() -> None:
        total = quantize([update], 8.0, 1 << 22)
        for seed in range(neighbours + 1):
            mask = pseudo_rand_gen(seed.to_bytes(32, "little"), 1 << 32, [(values,)])
            total = [total[0] + mask[0]]
        for _ in range(2):
            create_shares(bytes(32), threshold, holders)

    found: list[float] = []
    for _ in range(samples):
        _timed(found, work)
    return [1e3 * one for one in found]


def _trainings(data_dir: Path | None, *, repeats: int, quick: bool) -> list[Row]:
    """Return by how much longer masked rounds of ten clients take, pair by pair."""
    graph = {"dataset": "cora", "data_dir": str(data_dir)} if data_dir else {"dataset": "digits"}
    base: dict[str, Any] = {
        **graph,
        **{"split": "random:0.2/0.1/0.7", "clients": 10, "model": "sage"},
        **{"hidden": 16 if quick else 256, "layers": 2, "rounds": 3 if quick else 12},
    }
    rows = []
    for name, keys in _TRAININGS.items():
        pairs = [
            _rounds_s({**base, **keys, "secure_aggregation": "masked"})
            / _rounds_s({**base, **keys, "secure_aggregation": "none"})
            for _ in range(repeats)
        ]
        rows.append(
            Row(
                metric=f"rounds of 10 clients, {name}: masked / not",
                unit="x",
                spread=Spread.of(pairs),
                target=_MOST_LONGER,
                at_most=True,
            )
        )
    return rows


def _rounds_s(keys: dict[str, Any]) -> float:
    """Return the seconds of a training's rounds, without the first two."""
    with TemporaryDirectory() as folder:
        run = train(Path(folder) / "run", **keys)
        seconds = [e["seconds"] for e in events_of(run) if e["event"] == "round"]
    return float(sum(one for one in seconds[1:] if one))


def _timed(found: list[float], call: Callable[[], Any]) -> Any:
    """Call; note the CPU seconds."""
    begun = time.process_time()
    result = call()
    found.append(time.process_time() - begun)
    return result


def _over(slow: list[float], fast: list[float]) -> list[float]:
    return [one / other for one, other in zip(slow, fast, strict=False)]


def _row(metric: str, unit: str, samples: list[float]) -> Row:
    return Row(metric=metric, unit=unit, spread=Spread.of(samples))
