"""What masks cost: a client, the server, bytes; beside the parts of Flower's SecAgg+.

The protocol alone, with updates of 0.7 million values and a tenth of the clients missing; then
whole trainings in this process, with masks and without. SecAgg+ of Flower (the legacy API) is timed
by its own functions for the same neighbours: quantisation, pair masks, shares of two secrets.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

from retexo_fl.masking.holder import Hidden
from retexo_fl.masking.label import NEIGHBOURS, Label
from retexo_fl.masking.streams import Sums
from retexo_fl.masking.unmasking import unmask
from retexo_fl.updates import UpdateKey
from retexo_fl.updates.masked import MaskedUpdates
from tests.bench.measure import Spread
from tests.bench.outcome import Outcome, Row
from tests.support.masked_sums import MaskedClients
from tests.support.runs import events_of, train

_VALUES: Final = 700_000
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
    """Time masks of ten, a hundred and a thousand clients, then trainings of ten."""
    sizes = (4, 70) if quick else (10, 100, 1000)
    values = 2000 if quick else _VALUES
    times: list[Row] = []
    ratios: list[Row] = []
    for clients in sizes:
        found = _protocol(clients, values, samples=3 if clients > 500 else 7)
        flower = _secagg_plus(min(clients - 1, NEIGHBOURS), values, samples=3)
        times += [
            _row(f"{clients} clients: client, CPU", "ms", found["client"]),
            _row(f"{clients} clients: its key streams alone, CPU", "ms", found["streams"]),
            _row(f"{clients} clients: server adds one, CPU", "ms", found["add"]),
            _row(f"{clients} clients: server opens the sum, CPU", "ms", found["open"]),
            _row(f"{clients} clients: up, each client", "kB", found["bytes"]),
            _row(f"{clients} clients: shares of it", "kB", found["shares"]),
            _row(f"{clients} clients: client of SecAgg+, CPU", "ms", flower),
        ]
        ratios.append(
            _row(
                f"{clients} clients: client of SecAgg+ / ours", "x", _over(flower, found["client"])
            )
        )
    ratios += _trainings(data_dir, repeats=3 if quick else 5, quick=quick)
    setting = {"values": values, "clients": sizes, "missing": "a tenth", "update bits": 32}
    return Outcome(name="masked_sums", setting=setting, ratios=ratios, times=times)


def _protocol(clients: int, values: int, *, samples: int) -> dict[str, list[float]]:
    """Return samples of milliseconds and kilobytes."""
    masked, codec = MaskedClients(clients), MaskedUpdates()
    update = np.random.default_rng(0).normal(size=values).astype(np.float32)
    steps = codec.first_steps(values, most_train=100, terms=clients)
    shared = codec.shared(steps)
    found: dict[str, list[float]] = {"client": [], "streams": [], "add": []}
    label = masked.label()
    pairs = len(label.neighbours(0))

    def answer(client: int) -> Hidden:
        key = UpdateKey(seed=0, job="bench", stage=0, round=1, client=client)
        narrow, wide = codec.whole(update, key, steps)
        return masked.holders[client].hide(label, Sums.of(shared.ring, narrow, wide))

    included = [client for client in range(clients) if client % 10 or clients < 10]
    shares: dict[int, Any] = {}
    total: Sums | None = None
    for client in included:
        hidden = _timed(found["client"], partial(answer, client), samples)
        _timed(found["streams"], partial(_streams, pairs, 4 * values), samples)
        total = hidden.sums.form.zeros() if total is None else total
        packed = shared.ring.pack(hidden.sums.narrow)
        _timed(found["add"], partial(_add, total, hidden, packed, values), samples)
        shares[client] = hidden.shares
    assert total is not None
    kilobytes = len(packed) + sum(map(len, hidden.shares.values()))
    told = _told(masked, label, included, shares)
    opened: list[float] = []
    _timed(opened, partial(unmask, label, total, included, told), 1)
    return {
        **{name: [1e3 * one for one in of] for name, of in found.items()},
        "open": [1e3 * opened[0]] * 2,
        "bytes": [kilobytes / 1e3] * 2,
        "shares": [sum(map(len, hidden.shares.values())) / 1e3] * 2,
    }


def _streams(pairs: int, size: int) -> None:
    """Make the key streams of masks with so many clients, as pieces that stay in the cache."""
    zeros = memoryview(bytes(2**17))
    room = bytearray(2**17 + 64)
    for _ in range(pairs):
        write = Cipher(algorithms.ChaCha20(bytes(32), bytes(16)), mode=None).encryptor().update_into
        for begin in range(0, size, len(zeros)):
            write(zeros[: size - begin], room)


def _add(total: Sums, hidden: Hidden, packed: np.ndarray, values: int) -> None:
    ring = total.form.ring
    total.add(Sums(form=total.form, narrow=ring.unpack(packed, values), wide=hidden.sums.wide))


def _told(
    masked: MaskedClients, label: Label, included: list[int], shares: dict[int, Any]
) -> dict[int, bytes]:
    return {
        opener: masked.holders[opener].open(
            label, included, {client: shares[client][opener] for client in included}
        )
        for opener in label.openers
    }


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
    _timed(found, work, samples)
    for _ in range(samples - len(found)):
        _timed(found, work, samples)
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


def _timed(found: list[float], call: Callable[[], Any], most: int) -> Any:
    """Call; note the CPU seconds, of so many calls at most."""
    begun = time.process_time()
    result = call()
    if len(found) < most:
        found.append(time.process_time() - begun)
    return result


def _over(slow: list[float], fast: list[float]) -> list[float]:
    return [one / other for one, other in zip(slow, fast, strict=False)]


def _row(metric: str, unit: str, samples: list[float]) -> Row:
    return Row(metric=metric, unit=unit, spread=Spread.of(samples))
