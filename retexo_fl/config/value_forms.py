"""What values of keys may be: names of layers and metrics, and names with numbers (``krum:2``)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from retexo_fl.plugins import is_plugin


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueForm:
    """What a key's text may look like, apart from ``module:attribute``.

    Attributes:
        pattern: Matches a whole text.
        names: What such a text has before the colon; no module of an extension.
        expected: What is allowed, to end the sentence of an error.
        brief: The same for a list of options.
        extensible: Whether the text may name an extension.
    """

    pattern: re.Pattern[str]
    names: frozenset[str]
    expected: str
    brief: str
    extensible: bool = True

    def allows(self, text: str) -> bool:
        """Return whether a text has this form, or names an extension."""
        if self.pattern.fullmatch(text):
            return True
        return self.extensible and is_plugin(text) and text.partition(":")[0] not in self.names


#: Characters of a refused value that an error repeats.
_MOST_SHOWN: Final = 60
#: Above 0.
_LENGTH: Final = r"(?=[\d.]*[1-9])\d{1,9}(\.\d{1,12})?"
PARTITIONER: Final = ValueForm(
    pattern=re.compile(
        rf"random|metis|louvain|one-node|(file|attribute):.+|dirichlet:{_LENGTH}",
        re.DOTALL | re.ASCII,
    ),
    names=frozenset({"random", "metis", "louvain", "file", "attribute", "dirichlet"}),
    expected="one of random, metis, louvain, one-node, file:PATH, attribute:NAME (a client for "
    "each value), dirichlet:BETA (a number above 0: the larger, the more alike are clients' "
    "classes), or module:attribute",
    brief="random, metis, louvain, one-node, file:PATH, attribute:NAME, dirichlet:BETA, or "
    "module:attribute",
)

#: Shares have so few digits that exact fractions of them are cheap.
_SHARE: Final = r"(?=\.?\d)\d{0,3}(\.\d{0,12})?"
#: What a sweep takes for each split that a graph brings.
ALL_PUBLISHED: Final = "published:all"
SPLIT: Final = ValueForm(
    pattern=re.compile(
        rf"auto|published(:(\d{{1,4}}|all))?|(random|random-unstratified|per-client-class):{_SHARE}/{_SHARE}/{_SHARE}"
        r"|time(:[^/]{1,40}(/[^/]{1,40}){1,2})?",
        re.ASCII,
    ),
    names=frozenset({"auto", "published", "random", "time"}),
    expected="one of auto, published, published:COLUMN (one of several, from 0), published:all "
    "(each of them, in a sweep), random:TRAIN/VAL/TEST, random-unstratified:TRAIN/VAL/TEST, "
    "per-client-class:TRAIN/VAL/TEST with three shares such as 0.2/0.1/0.7, time:VAL/TEST with two "
    "points in time, or time:VAL/TEST/END, or time with --cuts, or module:attribute",
    brief="auto, published, published:COLUMN, in a sweep published:all, random:TRAIN/VAL/TEST, "
    "random-unstratified:TRAIN/VAL/TEST, per-client-class:TRAIN/VAL/TEST, time:VAL/TEST, "
    "time:VAL/TEST/END, or module:attribute",
)

#: Above 0 and below one half.
_TRIMMED: Final = r"0?\.(?=\d*[1-9])[0-4]\d{0,11}"
AGGREGATOR: Final = ValueForm(
    pattern=re.compile(
        rf"mean|median|trimmed-mean(:{_TRIMMED})?|(multi-)?krum:[1-9]\d{{0,5}}"
        rf"|norm-clipping(:{_LENGTH})?",
        re.ASCII,
    ),
    names=frozenset({"mean", "median", "krum"}),
    expected="one of mean, median, trimmed-mean or trimmed-mean:SHARE (above 0, below 0.5), "
    "krum:COUNT or multi-krum:COUNT (malicious clients, at least 1), norm-clipping or "
    "norm-clipping:NORM (above 0), or module:attribute",
    brief="mean, median, trimmed-mean:SHARE, krum:COUNT, multi-krum:COUNT, norm-clipping:NORM, or "
    "module:attribute",
)

LOSS: Final = ValueForm(
    pattern=re.compile(r"auto|cross-entropy|squared|focal:(?=\.?\d)\d?(\.\d{0,6})?", re.ASCII),
    names=frozenset({"focal"}),
    expected="one of auto, cross-entropy, focal:GAMMA with a number below 10 such as 2, squared, "
    "or module:attribute",
    brief="auto, cross-entropy, focal:GAMMA, squared, or module:attribute",
)

#: Not all of them zero.
_WEIGHT: Final = r"(?=\.?\d)\d{0,9}(\.\d{0,9})?"
_NAMED: Final = rf"[^,]{{1,200}}:{_WEIGHT}"
CLASS_WEIGHTS: Final = ValueForm(
    pattern=re.compile(
        rf"none|balanced|(?=.*[1-9]){_WEIGHT}(,{_WEIGHT})*|{_NAMED}(,{_NAMED})*", re.ASCII
    ),
    names=frozenset(),
    expected="none, balanced, a number from 0 for each class in their order, such as 1,20, not all "
    "of them 0, or numbers of some classes by name, such as spam:6",
    brief="none, balanced, a number for each class such as 1,20, or by name such as spam:6",
    extensible=False,
)

#: Built-in layers, for ``model``; ``layers/named.py`` has their classes.
MODELS: Final = (
    *("gcn", "sage", "gat", "gin", "sage-pool", "gine"),
    *("dir-gcn", "dir-sage", "dir-gat", "dir-gin"),
    *("rel-sage", "rel-gcn", "rel-gat"),
)
#: Those that attend to neighbours: what they read of them is no fixed sum.
ATTENDING: Final = frozenset({"gat", "dir-gat", "rel-gat"})
#: Those whose attention has heads, which share the hidden width, and PyG's.
WITH_HEADS: Final = ATTENDING | {"pyg:GATConv", "pyg:GATv2Conv", "pyg:TransformerConv"}

#: Names of metrics that need no more than a name; those of one class have its place from 0 behind
#: them, or its name until the classes' names are there.
METRIC_NAMES: Final = (
    *("auto", "accuracy", "balanced-accuracy", "macro-f1", "roc-auc", "average-precision"),
    *("log-loss", "rmse", "mae", "r2", "mrr", "node-mrr"),
)
OF_ONE_CLASS: Final = ("f1", "recall", "precision")
#: Those with a number behind them.
OF_FIRST: Final = ("hits", "node-hits", "node-ndcg")
_METRICS: Final = ", ".join(
    [
        *METRIC_NAMES,
        *(f"{name}:CLASS" for name in OF_ONE_CLASS),
        *(f"{name}:COUNT" for name in OF_FIRST),
    ]
)
METRIC: Final = ValueForm(
    pattern=re.compile(
        rf"{'|'.join(METRIC_NAMES)}|({'|'.join(OF_ONE_CLASS)}):.{{1,200}}"
        rf"|({'|'.join(OF_FIRST)}):[1-9]\d{{0,8}}",
        re.ASCII,
    ),
    names=frozenset({*OF_ONE_CLASS, *OF_FIRST}),
    expected=f"one of {_METRICS} with the name of a class, or its place from 0, or a number of "
    "pairs or nodes, or module:attribute",
    brief=f"{_METRICS}, or module:attribute",
)

#: What a client may compute on; :mod:`retexo_fl.device_names` reads it.
_DEVICE: Final = r"(cpu(:[1-9]\d{0,2})?|cuda(:\d{1,3})?)"
DEVICES: Final = ValueForm(
    pattern=re.compile(rf"auto|{_DEVICE}(,{_DEVICE})*", re.ASCII),
    names=frozenset(),
    expected="auto, or one or more of cpu, cpu:COUNT (worker processes), cuda and cuda:NUMBER, "
    "such as cuda:0,cpu:2",
    brief="auto, cpu, cpu:COUNT, cuda:NUMBER, or several such as cuda:0,cpu:2",
    extensible=False,
)

#: Units of a memory budget, in bytes.
BUDGET_UNITS: Final = MappingProxyType({"MB": 10**6, "GB": 10**9})
BUDGET: Final = ValueForm(
    pattern=re.compile(rf"auto|[1-9]\d{{0,5}}(\.\d{{1,3}})?({'|'.join(BUDGET_UNITS)})", re.ASCII),
    names=frozenset(),
    expected="auto, or a size such as 4GB or 500MB",
    brief="auto, or a size such as 4GB",
    extensible=False,
)

#: A number for each layer, or hop.
FANOUTS: Final = ValueForm(
    pattern=re.compile(r"[1-9]\d{0,5}(/[1-9]\d{0,5}){0,31}", re.ASCII),
    names=frozenset(),
    expected="whole numbers from 1 with / between them, such as 15/10/5",
    brief="such as 15/10/5",
    extensible=False,
)

#: Names of links whose figures are in ``simulation/links.py``.
LINK_PROFILES: Final = ("ideal", "bluetooth", "4g", "wan-50ms", "wan-100ms", "wan-200ms")
_QUANTITY: Final = r"(?=[\d.]*[1-9])\d{1,9}(\.\d{1,9})?"
_LINK_PARTS: Final = (
    rf"(rate:{_QUANTITY}[kmg]?bit|delay:(0|{_QUANTITY})(us|ms|s)|loss:(0|0?\.\d{{1,12}}))"
)
#: Parts in any order, none of them twice.
LINK: Final = re.compile(
    rf"{'|'.join(LINK_PROFILES)}"
    rf"|(?!.*rate.*rate|.*delay.*delay|.*loss.*loss){_LINK_PARTS}(/{_LINK_PARTS}){{0,2}}",
    re.ASCII,
)
LINK_EXPECTED: Final = (
    f"one of {', '.join(LINK_PROFILES)}, or rate:10mbit/delay:50ms/loss:0.01 with one to three of "
    "these parts (rate in bit, kbit, mbit or gbit a second; delay in us, ms or s; loss from 0 to "
    "below 1)"
)
LINKS: Final = ValueForm(
    pattern=re.compile(rf"{LINK.pattern}|[^\x00-\x1f\x7f\ud800-\udfff]+\.toml", re.ASCII),
    names=frozenset(),
    expected=f"{LINK_EXPECTED}, or a path FILE.toml of links by name",
    brief=f"{', '.join(LINK_PROFILES)}, rate:10mbit/delay:50ms/loss:0.01, or FILE.toml",
    extensible=False,
)


def shown(value: object) -> str:
    """Return a refused value as an error repeats it."""
    text = repr(value)
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."
