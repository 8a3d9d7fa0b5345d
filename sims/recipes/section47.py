"""RETEXO, section 4.7: model traffic beside message passing on small machines.

The paper's Raspberry Pis train an MLP for 400 rounds as their first stage and pass on class logits,
once: 8 bytes of number and 7 values for each of about 1,088 boundary nodes. The same sizes here:
GCN, whose first stage has as many weights. What is passed on is what lazy training needs: the
words of a node before the first layer, its hidden state before the second.
"""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from sims.catalogue import Setting
from sims.outcome import Check, Outcome, Row
from sims.paper import SMALL, at_hand, described, keys_for
from sims.published import SECTION_47_MB
from sims.trained import MODEL_KINDS, Trained
from sims.trainings import Trainings

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PURPOSE: Final = "model traffic beside message passing, 400 rounds: RETEXO, section 4.7"

DATASET: Final = "cora"
MODEL: Final = "gcn"
ROUNDS: Final = 400
CODECS: Final = ("lossless", "dense")
SEED: Final = 0
LAYERS: Final = (0, 1)


class Moved(NamedTuple):
    """MB of one of two clients and one layer, on average: one direction each."""

    model: float
    boundary: float


def run(setting: Setting) -> Outcome:
    """Train with both codecs."""
    at_hand(setting, (DATASET,))
    trainings = Trainings(setting.kept)
    found = trainings.all({codec: _keys(setting, codec) for codec in CODECS})
    moved = {
        (codec, layer): _moved(found[codec], layer) for codec, layer in product(CODECS, LAYERS)
    }
    return Outcome(
        title=f"RETEXO, section 4.7: bytes of one of two clients, Cora, {ROUNDS} rounds a layer",
        setting=described(
            setting,
            {**SMALL, "dataset": DATASET, "model": MODEL, "rounds": ROUNDS},
            [SEED],
            trainings,
            reference="RETEXO, section 4.7: first layer; there class logits are passed on",
            volume="payload; updates that a client sends, vectors that it sends",
        ),
        rows=_rows(moved, found),
        checks=_checks(moved, found),
        draw=lambda axes: _draw(axes, moved),
    )


def _keys(setting: Setting, codec: str) -> dict[str, Any]:
    keys = keys_for(setting, DATASET, model=MODEL, algorithm="lazy")
    more = {} if setting.quick else {"rounds": ROUNDS}
    return {**keys, **more, "codec": codec, "seed": SEED}


def _moved(trained: Trained, layer: int) -> Moved:
    def sum_of(kind: str) -> float:
        lines = (line for line in trained.moved if (line["kind"], line["layer"]) == (kind, layer))
        return sum(int(line["payload"]) for line in lines) / trained.clients / 1e6

    return Moved(model=sum_of("updates_up"), boundary=sum_of("boundary"))


def _rows(moved: dict[tuple[str, int], Moved], found: dict[str, Trained]) -> list[Row]:
    rows = []
    for layer in LAYERS:
        first = layer == 0
        rows.append(
            Row(
                metric=f"model, layer {layer}, updates up",
                unit="MB",
                ours=moved["lossless", layer].model,
                reference=SECTION_47_MB["model"] if first else None,
            )
        )
        # Their logits are passed on after a layer, which is where our second exchange stands.
        rows += [
            Row(
                metric=f"boundary, exchange before layer {layer}, {codec}",
                unit="MB",
                ours=moved[codec, layer].boundary,
                reference=None if first else SECTION_47_MB["boundary"],
            )
            for codec in CODECS
        ]
    rows += [
        Row(
            metric=f"message passing of all bytes, {codec}",
            unit="share",
            ours=_share(trained),
            reference=SECTION_47_MB["boundary"] / sum(SECTION_47_MB.values()),
        )
        for codec, trained in found.items()
    ]
    accuracy = found["lossless"].accuracy
    return [*rows, Row(metric="test accuracy", unit="share", ours=accuracy)]


def _share(trained: Trained) -> float:
    return trained.boundary() / (trained.boundary() + trained.bytes(kinds=MODEL_KINDS))


def _checks(moved: dict[tuple[str, int], Moved], found: dict[str, Trained]) -> tuple[Check, ...]:
    model = sum(moved["lossless", layer].model for layer in LAYERS)
    boundary = sum(moved["lossless", layer].boundary for layer in LAYERS)
    accuracies = [trained.accuracy for trained in found.values()]
    return (
        Check(
            line=f"nearly all bytes are the model's: {model:.3f} MB of updates against "
            f"{boundary:.3f} MB of vectors",
            holds=model > boundary,
        ),
        Check(
            line="both codecs train to the same accuracy",
            holds=len(set(accuracies)) == 1,
        ),
    )


def _draw(axes: Axes, moved: dict[tuple[str, int], Moved]) -> None:
    names = ["updates, layer 0", "updates, layer 1"]
    values = [moved["lossless", layer].model for layer in LAYERS]
    published: list[float | None] = [SECTION_47_MB["model"], None]
    for layer, codec in product(LAYERS, CODECS):
        names.append(f"vectors before\nlayer {layer}, {codec}")
        values.append(moved[codec, layer].boundary)
        published.append(None if layer == 0 else SECTION_47_MB["boundary"])
    axes.bar(range(len(names)), values, color="#4c78a8", label="ours")
    for place, value in enumerate(published):
        if value is not None:
            axes.plot((place - 0.4, place + 0.4), (value, value), color="black")
    axes.set_xticks(range(len(names)), names, fontsize=7)
    axes.set_yscale("log")
    axes.set_ylabel("MB of one client, one direction (lines: RETEXO)")
