"""RETEXO, section 4.7: model traffic beside message passing on small machines.

The paper: a GCN on the halves of Cora on two Raspberry Pis, 585 MB for gradient aggregation of the
first layer with the headers of protocols, 0.08 MB over Bluetooth. It tells neither the rounds nor
whether both directions are counted; how 585 MB come about is therefore inferred, in three readings
that stand beside the figure.

The authors' released Flower prototype (``retexo-flower``) is another algorithm: an MLP for 400
rounds as its first stage, which passes on class logits; 8 bytes of number and 7 values for each of
about 1,088 boundary nodes are 0.078 MB. Here 400 rounds of GCN are run, whose first stage has as
many weights as that MLP. What is passed on is what lazy training needs: the words of a node before
the first layer, its hidden state before the second.
"""

from __future__ import annotations

from functools import partial
from typing import Final, NamedTuple

from retexo_fl.config import make_config
from retexo_fl.training.stage_model import ModelShape
from retexo_fl.training.volume import stage_parameters
from sims.catalogue import Setting
from sims.charts import draw_bars
from sims.outcome import Axes, Cell, Check, Draw, Figures, Outcome, Row
from sims.paper import QUICK, SMALL, described, keys_for
from sims.published import SECTION_47
from sims.sweep import ACCURACY, Column, Sweep, Value
from sims.trained import MODEL_KINDS, Trained

PURPOSE: Final = "model traffic beside message passing, 400 rounds: RETEXO, section 4.7"

DATASET: Final = "cora"
MODEL: Final = "gcn"
ROUNDS: Final = 400
CODECS: Final = ("lossless", "dense")
SEED: Final = 0
LAYERS: Final = (0, 1)
#: Of Cora.
INPUTS: Final = 1433
CLASSES: Final = 7
_FLOAT_BYTES: Final = 4


class Reading(NamedTuple):
    """What may have been counted as the first layer's gradient aggregation."""

    model: str
    rounds: int
    directions: int
    why: str


READINGS: Final = (
    Reading("gcn", 400, 1, "rounds of the prototype"),
    Reading("sage", 100, 2, "rounds of the paper's small graphs"),
    Reading("gcn", 100, 2, "layer and rounds of the paper"),
)


def run(setting: Setting) -> Outcome:
    """Train with both codecs."""
    more = {} if setting.quick else {"rounds": ROUNDS}
    sweep = Sweep(setting, SEED)
    sweep.train(
        {(codec,): keys_for(setting, DATASET, MODEL, **more, codec=codec) for codec in CODECS}
    )
    rows = []
    for layer in LAYERS:
        # Updates as published: with their zeros.
        updates = sweep.mean(("lossless",), _moved_mb("updates_up", layer, "raw"))
        rows.append(Row(metric=f"model, layer {layer}, updates up", unit="MB", ours=updates))
        vectors = _moved_mb("boundary", layer, "payload")
        rows += sweep.rows([Column(f"boundary, exchange before layer {layer}", "MB", vectors)])
    return Outcome(
        title=f"RETEXO, section 4.7: bytes of one of two clients, Cora, {ROUNDS} rounds a layer",
        setting=described(
            setting,
            {**SMALL, "dataset": DATASET, "model": MODEL, "rounds": ROUNDS},
            sweep,
            volume="updates that a client sends, raw; vectors that it sends, payload",
        ),
        rows=[*rows, *sweep.rows([SHARE]), *sweep.rows([ACCURACY])],
    )


def _moved_mb(kind: str, layer: int, measure: str) -> Value:
    """Return what tells MB of one of two clients and one layer, on average: one direction."""

    def megabytes(trained: Trained) -> float:
        lines = (line for line in trained.moved if (line["kind"], line["layer"]) == (kind, layer))
        return sum(int(line[measure]) for line in lines) / trained.clients / 1e6

    return megabytes


def _share(trained: Trained) -> float:
    return trained.boundary() / (trained.boundary() + trained.bytes(kinds=MODEL_KINDS))


SHARE: Final = Column("message passing of all bytes", "share", _share)


def checks_from(figures: Figures, *, quick: bool) -> list[Check]:
    """Return the lines that must hold."""
    model, boundary = (
        sum(figures[name].ours for name in names)
        for names in (
            [f"model, layer {layer}, updates up" for layer in LAYERS],
            [f"boundary, exchange before layer {layer}, lossless" for layer in LAYERS],
        )
    )
    keys = {**SMALL, "rounds": ROUNDS, **(QUICK if quick else {})}
    counted = figures["model, layer 0, updates up"].ours
    expected = _first_layer_mb(MODEL, int(str(keys["hidden"])), int(str(keys["rounds"])), 1)
    return [
        Check(
            line=f"nearly all bytes are the model's: {model:.3f} MB of updates against "
            f"{boundary:.3f} MB of vectors",
            holds=model > boundary,
        ),
        Check(
            line=f"the first layer's updates are its weights, four bytes each, in every round: "
            f"{counted:.3f} MB of {expected:.3f} MB",
            holds=abs(counted - expected) < 1e-6,
        ),
        Check(
            line="both codecs train to the same accuracy",
            holds=len({figures[f"test accuracy, {codec}"].ours for codec in CODECS}) == 1,
        ),
    ]


def _first_layer_mb(model: str, hidden: int, rounds: int, directions: int) -> float:
    """Return MB of the first stage's weights or gradients, four bytes a value."""
    config = make_config({"model": model, "layers": len(LAYERS), "hidden": hidden})
    shape = ModelShape.of(config, inputs=INPUTS, classes=CLASSES)
    return stage_parameters(shape)[0][0] * _FLOAT_BYTES * directions * rounds / 1e6


def published_beside(figures: Figures) -> list[Cell]:
    """Return what the section tells, beside readings of its first figure and what is run here."""
    hidden = int(str(SMALL["hidden"]))
    cells = [
        Cell(
            name="gradient aggregation of the first layer",
            unit="MB",
            published=SECTION_47["model MB"],
            ours=_first_layer_mb(one.model, hidden, one.rounds, one.directions),
            how=f"{one.rounds} rounds of {one.model}, "
            f"{'one direction' if one.directions == 1 else 'both directions'} ({one.why})",
        )
        for one in READINGS
    ]
    sent = sum(figures[f"boundary, exchange before layer {k}, lossless"].ours for k in LAYERS)
    elsewhere = "see docs/bluetooth-report.md"
    return [
        *cells,
        Cell(
            name="message passing over Bluetooth",
            unit="MB",
            published=SECTION_47["boundary MB"],
            ours=sent,
            how="sent by one client before both layers, hidden states in place of logits",
        ),
        Cell(name="memory", unit="MB", published=SECTION_47["memory MB"], how=elsewhere),
        Cell(
            name="message passing with connecting and requests",
            unit="s",
            published=SECTION_47["passing s"],
            how=elsewhere,
        ),
        Cell(
            name="connecting and exchanging one node's embedding",
            unit="s",
            published=SECTION_47["row s"],
            how=elsewhere,
        ),
    ]


def pictures(figures: Figures) -> list[Draw]:
    """Return what draws the bytes of both layers."""
    return [partial(_draw, figures)]


def _draw(figures: Figures, axes: Axes) -> None:
    bars = [
        (f"updates, layer {layer}", f"model, layer {layer}, updates up", published)
        for layer, published in zip(LAYERS, (SECTION_47["model MB"], None), strict=True)
    ]
    bars += [
        (
            f"vectors before\nlayer {layer}, {codec}",
            f"boundary, exchange before layer {layer}, {codec}",
            published,
        )
        for layer, published in zip(LAYERS, (None, SECTION_47["boundary MB"]), strict=True)
        for codec in CODECS
    ]
    names, metrics, published_mb = zip(*bars, strict=True)
    series = {"ours": [figures[metric].values for metric in metrics]}
    draw_bars(axes, names, series, marks={"ours": published_mb})
    axes.set_yscale("log")
    axes.set_ylabel("MB of one client, one direction (lines: RETEXO)")
