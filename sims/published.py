"""The figures of other people that recipes stand beside, and where each is from."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

MODELS: Final = ("gcn", "sage", "gat")


class Score(NamedTuple):
    """A mean of ten runs, and their standard deviation where it is published."""

    mean: float
    sd: float | None = None


class Pair(NamedTuple):
    """One data set and layer of RETEXO's table 2."""

    standard: Score
    lazy: Score


#: Micro-F1 by (data set, model): end-to-end training, and layer by layer.
#: Source: RETEXO, table 2.
TABLE_2: Final[Mapping[tuple[str, str], Pair]] = MappingProxyType(
    {
        ("cora", "gcn"): Pair(Score(0.820, 0.005), Score(0.828, 0.006)),
        ("cora", "sage"): Pair(Score(0.826, 0.004), Score(0.825, 0.004)),
        ("cora", "gat"): Pair(Score(0.807, 0.007), Score(0.818, 0.006)),
        ("citeseer", "gcn"): Pair(Score(0.725, 0.006), Score(0.739, 0.009)),
        ("citeseer", "sage"): Pair(Score(0.743, 0.010), Score(0.766, 0.008)),
        ("citeseer", "gat"): Pair(Score(0.714, 0.011), Score(0.738, 0.010)),
        ("pubmed", "gcn"): Pair(Score(0.838, 0.001), Score(0.850, 0.002)),
        ("pubmed", "sage"): Pair(Score(0.867, 0.002), Score(0.861, 0.002)),
        ("pubmed", "gat"): Pair(Score(0.833, 0.002), Score(0.830, 0.002)),
        ("facebook_page_page", "gcn"): Pair(Score(0.917, 0.001), Score(0.916, 0.003)),
        ("facebook_page_page", "sage"): Pair(Score(0.925, 0.001), Score(0.910, 0.002)),
        ("facebook_page_page", "gat"): Pair(Score(0.912, 0.003), Score(0.913, 0.003)),
        ("lastfm_asia", "gcn"): Pair(Score(0.846, 0.002), Score(0.843, 0.005)),
        ("lastfm_asia", "sage"): Pair(Score(0.835, 0.004), Score(0.825, 0.007)),
        ("lastfm_asia", "gat"): Pair(Score(0.842, 0.004), Score(0.832, 0.005)),
        ("reddit", "gcn"): Pair(Score(0.925), Score(0.939)),
        ("reddit", "sage"): Pair(Score(0.952), Score(0.957, 0.004)),
        ("reddit", "gat"): Pair(Score(0.925), Score(0.944, 0.003)),
        ("products", "gcn"): Pair(Score(0.713), Score(0.791, 0.001)),
        ("products", "sage"): Pair(Score(0.781), Score(0.792, 0.001)),
        ("products", "gat"): Pair(Score(0.707), Score(0.748, 0.001)),
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

#: Share of message passing in those bytes, at least. Source: RETEXO, section 4.3.
PASSING_SHARE: Final[Mapping[str, float]] = MappingProxyType({"standard": 0.995, "bns": 0.96})

#: Micro-F1 of GAT by (data set, algorithm), boundary sampling with its rate.
#: Source: RETEXO, table 3.
TABLE_3: Final[Mapping[tuple[str, str], float]] = MappingProxyType(
    {
        ("reddit", "lazy"): 0.942,
        ("reddit", "standard"): 0.925,
        ("reddit", "bns 0.1"): 0.903,
        ("reddit", "bns 0.01"): 0.404,
        ("products", "lazy"): 0.749,
        ("products", "standard"): 0.704,
        ("products", "bns 0.1"): 0.648,
        ("products", "bns 0.01"): 0.348,
    }
)


class Seconds(NamedTuple):
    """Of a training with four workers: in all, and in message passing."""

    total: float
    passing: float


#: In all and in message passing, at the delays of :data:`TABLE_4_MS`.
_TABLE_4: Final = {
    ("reddit", "lazy"): ((41.3, 1.7), (103.7, 1.5), (181.9, 1.5), (339.8, 1.5)),
    ("reddit", "standard"): ((290.6, 262.0), (325.2, 274.8), (409.4, 339.5), (802.1, 665.7)),
    ("reddit", "bns 0.1"): ((43.9, 32.6), (113.4, 82.8), (193.3, 142.9), (370.5, 279.8)),
    ("products", "lazy"): ((76.0, 6.3), (112.2, 6.1), (158.0, 6.0), (275.3, 6.0)),
    ("products", "standard"): (
        (1681.2, 1528.8),
        (1692.8, 1526.4),
        (1711.6, 1519.3),
        (2176.4, 1912.4),
    ),
    ("products", "bns 0.1"): ((205.3, 168.9), (233.9, 180.5), (289.1, 214.6), (407.7, 293.9)),
}
#: By (data set, algorithm).
#: Source: RETEXO, table 4: SAGE, 200 rounds.
TABLE_4: Final[Mapping[tuple[str, str], tuple[Seconds, ...]]] = MappingProxyType(
    {cell: tuple(Seconds(*pair) for pair in pairs) for cell, pairs in _TABLE_4.items()}
)
TABLE_4_MS: Final = (0, 50, 100, 200)


class Gamma(NamedTuple):
    """How many times more standard training moves: by equation 2, and counted."""

    theoretical: float
    empirical: float


#: By (data set, number of partitions). Source: RETEXO, tables 5 (Products) and 6 (Reddit).
GAMMA: Final[Mapping[tuple[str, int], Gamma]] = MappingProxyType(
    {
        ("products", 2): Gamma(314.2, 314.6),
        ("products", 4): Gamma(319.8, 320.2),
        ("products", 6): Gamma(320.5, 321.2),
        ("products", 8): Gamma(320.5, 321.1),
        ("reddit", 2): Gamma(125.9, 125.9),
        ("reddit", 4): Gamma(146.8, 146.8),
        ("reddit", 6): Gamma(151.5, 151.4),
        ("reddit", 8): Gamma(153.4, 153.5),
        ("reddit", 16): Gamma(155.1, 155.2),
        ("reddit", 24): Gamma(154.7, 154.8),
    }
)

#: Two Raspberry Pi 4 train a GCN on the halves of Cora with Flower, Bluetooth between them: MB of
#: gradient aggregation of the first layer with the headers of protocols, MB over Bluetooth, MB of
#: memory at most, seconds of message passing with connecting and requests, and seconds of
#: connecting and exchanging one node's embedding.
#: Source: RETEXO, section 4.7, which tells neither its rounds nor the directions that it counts.
SECTION_47: Final[Mapping[str, float]] = MappingProxyType(
    {
        "model MB": 585.0,
        "boundary MB": 0.08,
        "memory MB": 165.44,
        "passing s": 63.28,
        "row s": 0.6,
    }
)

#: Seconds of an epoch by graph: neighbour sampling, LADIES of 512 nodes a layer, Global Neighbor
#: Sampling. The abstract's headline is made of them: 2 to 4 times as fast as neighbour sampling,
#: 2 to 14 times as LADIES with small layers.
#: Source: Dong et al. (KDD'21), table 3.
GNS_EPOCHS_S: Final[Mapping[str, tuple[float, float, float]]] = MappingProxyType(
    {
        "yelp": (58.5, 62.1, 23.1),
        "amazon": (89.5, 613.4, 42.8),
        "oag-paper": (3203.2, 2108.0, 819.4),
        "products": (25.6, 45.4, 11.9),
        "papers100M": (462.2, 152.7, 98.5),
    }
)

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


#: MB that the runs by Louvain moved in 100 rounds of 7,205.5 KiB (Cora) and 18,550 (Citeseer).
#: Source: OpenFGL 1.1.0, ``comm_cost`` of those runs, both directions.
OPENFGL_MB: Final[Mapping[str, float]] = MappingProxyType({"cora": 737.8, "citeseer": 1899.5})


class Federated(NamedTuple):
    """Accuracy of a federation of ten clients, and what moved in units of 2^20 bytes, if told."""

    accuracy: float
    mib: float | None = None


#: By (data set, BETA, algorithm): the public split, classes shared out by a Dirichlet distribution,
#: 200 rounds, hidden width 16. What moved is there called MB, of 2^20 bytes: 23,063 weights of
#: Cora's model of 4 bytes, ten trainers, both directions, 200 rounds are its 351.91.
#: Source: FedGraph, ``benchmark/figure/NC_comm_costs_old/nc_data_raw.csv`` at commit 1eef9066dbc8,
#: columns Accuracy and Theoretical_Total_MB; read again on 29 November 2026.
FEDGRAPH: Final[Mapping[tuple[str, str, str], Federated]] = MappingProxyType(
    {
        ("cora", "10000", "FedGCN"): Federated(0.792, 554.60),
        ("cora", "10", "FedGCN"): Federated(0.779, 552.94),
        ("cora", "10000", "FedAvg"): Federated(0.579, 351.91),
        ("cora", "10", "FedAvg"): Federated(0.617, 351.91),
        ("citeseer", "10000", "FedGCN"): Federated(0.684, 1516.69),
        ("citeseer", "10", "FedGCN"): Federated(0.684, 1513.67),
        ("citeseer", "10000", "FedAvg"): Federated(0.553, 905.85),
        ("citeseer", "10", "FedAvg"): Federated(0.579, 905.85),
        ("pubmed", "10000", "FedGCN"): Federated(0.745, 630.96),
        ("pubmed", "10", "FedGCN"): Federated(0.728, 629.94),
        ("pubmed", "10000", "FedAvg"): Federated(0.490, 123.09),
        ("pubmed", "10", "FedAvg"): Federated(0.456, 123.09),
    }
)
#: By (data set, algorithm): METIS, 20, 40 and 40 % of all nodes, ten clients, their own models on
#: their own test nodes.
#: Source: TopFGL, table III, as noted in our survey of 21 November 2026; the table was not at hand
#: again. Partitions, split and features were read again in its code
#: (``datasets/get_data_disjoint.py`` and ``utils.py`` of isjywang/TopFGL).
TOPFGL: Final[Mapping[tuple[str, str], float]] = MappingProxyType(
    {
        ("cora", "TopFGL"): 0.859,
        ("cora", "AdaFGL"): 0.836,
        ("cora", "FedGTA"): 0.817,
        ("cora", "FedAvg"): 0.809,
        ("cora", "local"): 0.796,
        ("citeseer", "TopFGL"): 0.723,
        ("citeseer", "AdaFGL"): 0.685,
        ("citeseer", "FedGTA"): 0.703,
        ("citeseer", "FedAvg"): 0.692,
        ("citeseer", "local"): 0.637,
        ("pubmed", "TopFGL"): 0.877,
        ("pubmed", "AdaFGL"): 0.861,
        ("pubmed", "FedGTA"): 0.866,
        ("pubmed", "FedAvg"): 0.860,
        ("pubmed", "local"): 0.829,
    }
)
#: By data set, under partitions and a split that were not at hand.
#: Source: Chen et al., Rethinking Client-oriented Federated Graph Learning (FedC4), 2025, arXiv
#: 2504.14188, as wizwand.com lists its figures; read on 29 November 2026.
FEDC4: Final[Mapping[str, float]] = MappingProxyType({"cora": 0.8602, "citeseer": 0.7595})


class LinkScore(NamedTuple):
    """Area under the ROC curve and average precision of predicted links, means of ten runs."""

    auc: float
    ap: float


#: Links of citation graphs by (data set, method), with features, 85 % of the edges to train on, 5 %
#: and 10 % held out beside as many pairs without an edge.
#: Source: Kipf and Welling, Variational Graph Auto-Encoders, 2016, table 1.
LINK_PREDICTION: Final[Mapping[tuple[str, str], LinkScore]] = MappingProxyType(
    {
        ("cora", "GAE"): LinkScore(0.910, 0.920),
        ("cora", "VGAE"): LinkScore(0.914, 0.926),
        ("citeseer", "GAE"): LinkScore(0.895, 0.899),
        ("citeseer", "VGAE"): LinkScore(0.908, 0.920),
        ("pubmed", "GAE"): LinkScore(0.964, 0.965),
        ("pubmed", "VGAE"): LinkScore(0.944, 0.947),
    }
)

#: ROC AUC on Tolokers by model, over its ten splits, with skip connections, layer normalisation,
#: and up to five layers of 512 units.
#: Source: Platonov et al., ICLR 2023, table of results on the proposed data sets. It has no average
#: precision.
TOLOKERS: Final[Mapping[str, Score]] = MappingProxyType(
    {
        "gcn": Score(0.8364, 0.0067),
        "sage": Score(0.8243, 0.0044),
        "gat": Score(0.8370, 0.0047),
        "gt": Score(0.8323, 0.0064),
    }
)

#: What is asked for and nowhere at hand; recipes repeat it in their setting.
NOT_AT_HAND: Final[Mapping[str, str]] = MappingProxyType(
    {
        "fig3": "the time shares of RETEXO's figure 3 are not at hand",
        "fig6": "the curves of RETEXO's figure 6 are not at hand",
        "fig7": "the bars of RETEXO's figure 7 are not at hand; the reference is its closed form",
        "fig8": "the curves of RETEXO's figure 8 are not at hand; on its large graphs gamma grows "
        "with the number of clients",
    }
)
