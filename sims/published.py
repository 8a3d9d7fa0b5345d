"""The figures of other people that recipes stand beside, and where each is from.

Only what is at hand: of most cells of RETEXO's tables 3 to 6 and of its figures nothing is, and a
recipe says so instead of guessing.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

MODELS: Final = ("gcn", "sage", "gat")

#: Micro-F1 by (data set, model): end-to-end training, and layer by layer. Ten runs each.
#: Source: RETEXO, table 2.
TABLE_2: Final[Mapping[tuple[str, str], tuple[float, float]]] = MappingProxyType(
    {
        ("cora", "gcn"): (0.820, 0.828),
        ("cora", "sage"): (0.826, 0.825),
        ("cora", "gat"): (0.807, 0.818),
        ("citeseer", "gcn"): (0.725, 0.739),
        ("citeseer", "sage"): (0.743, 0.766),
        ("citeseer", "gat"): (0.714, 0.738),
        ("pubmed", "gcn"): (0.838, 0.850),
        ("pubmed", "sage"): (0.867, 0.861),
        ("pubmed", "gat"): (0.833, 0.830),
        ("facebook_page_page", "gcn"): (0.917, 0.916),
        ("facebook_page_page", "sage"): (0.925, 0.910),
        ("facebook_page_page", "gat"): (0.912, 0.913),
        ("lastfm_asia", "gcn"): (0.846, 0.843),
        ("lastfm_asia", "sage"): (0.835, 0.825),
        ("lastfm_asia", "gat"): (0.842, 0.832),
        ("reddit", "gcn"): (0.925, 0.939),
        ("reddit", "sage"): (0.952, 0.957),
        ("reddit", "gat"): (0.925, 0.944),
        ("products", "gcn"): (0.713, 0.791),
        ("products", "sage"): (0.781, 0.792),
        ("products", "gat"): (0.707, 0.748),
    }
)

#: GB that one of two workers sends and receives in a training, by (data set, algorithm).
#: Source: RETEXO, section 4, two workers (rounded there).
GB_PER_WORKER: Final[Mapping[tuple[str, str], float]] = MappingProxyType(
    {
        ("reddit", "standard"): 285.0,
        ("reddit", "bns"): 29.5,
        ("reddit", "lazy"): 2.2,
        ("products", "standard"): 1900.0,
        ("products", "bns"): 191.0,
        ("products", "lazy"): 6.0,
    }
)

#: Micro-F1 of GAT under boundary sampling at the rate 0.01, by data set.
#: Source: RETEXO, table 3 (its other cells are not at hand).
TABLE_3_GAT_RATE_001: Final[Mapping[str, float]] = MappingProxyType(
    {"reddit": 0.404, "products": 0.348}
)

#: Seconds of a training with four workers by (data set, algorithm, delay in ms).
#: Source: RETEXO, table 4 (its other cells are not at hand).
TABLE_4_S: Final[Mapping[tuple[str, str, int], float]] = MappingProxyType(
    {
        ("reddit", "lazy", 0): 41.3,
        ("reddit", "standard", 0): 290.6,
        ("reddit", "bns", 0): 43.9,
        ("reddit", "lazy", 200): 340.0,
        ("products", "lazy", 0): 76.0,
        ("products", "standard", 0): 1681.0,
        ("products", "bns", 0): 205.0,
        ("products", "lazy", 200): 275.0,
    }
)

#: MB of model traffic and of message passing of one of two Raspberry Pis that train on Cora for 400
#: rounds, its first layer. What they pass on are class logits, not hidden states.
#: Source: RETEXO, section 4.7.
SECTION_47_MB: Final[Mapping[str, float]] = MappingProxyType({"model": 585.0, "boundary": 0.08})

#: Accuracy of federated averaging without cross-client edges over ten clients, by (data set,
#: partitioner); the mean over seeds of clients' own models on their own test nodes.
#: Source: OpenFGL 1.1.0, run for Cora with seeds 0 to 2 (Louvain) and 0, 1 (METIS), for Citeseer
#: with seeds 1, 2; TopFGL, table III, for the others (hidden width 128, two local epochs).
OPENFGL_LOCAL: Final[Mapping[tuple[str, str], float]] = MappingProxyType(
    {
        ("cora", "louvain"): 0.795,
        ("cora", "metis"): 0.809,
        ("citeseer", "louvain"): 0.6725,
        ("citeseer", "metis"): 0.692,
        ("pubmed", "metis"): 0.860,
    }
)
#: Accuracy on Cora of one model that knows all edges, under the same splits.
#: Source: PyTorch Geometric, run with seeds 0 to 2 (Louvain), 0, 1 (METIS) and 0 (random).
OPENFGL_CENTRAL: Final[Mapping[tuple[str, str], float]] = MappingProxyType(
    {("cora", "louvain"): 0.860, ("cora", "metis"): 0.8645, ("cora", "random"): 0.855}
)

#: What is asked for and nowhere at hand; recipes repeat it in their setting.
NOT_AT_HAND: Final[Mapping[str, str]] = MappingProxyType(
    {
        "fig3": "the time shares of RETEXO's figure 3 are not at hand",
        "fig6": "the curves of RETEXO's figure 6 are not at hand",
        "fig7": "the bars of RETEXO's figure 7 are not at hand; the reference is its closed form",
        "fig8": "the curves of RETEXO's figure 8 are not at hand",
        "table3": "of RETEXO's table 3 only GAT at the rate 0.01 is at hand",
        "table4": "RETEXO's table 4 is at hand at 0 ms, and for lazy at 200 ms, only",
        "gamma": "the cells of RETEXO's tables 5 and 6 are not at hand; its GB per worker are",
    }
)
