"""The keys of a run, each declared once: name, type, default, help, values, place in lists.

A key is written in kebab case everywhere a user meets it (command line, ``config.toml``,
Flower's run configuration) and in snake case as the field of :class:`RunConfig`. Values are what
Flower's run configuration can carry: ``bool``, ``int``, ``float``, ``str``.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from retexo_fl.algorithms import ALGORITHMS, Algorithm
from retexo_fl.config.checks import check_alone, check_together
from retexo_fl.config.goals import GOALS, Goal
from retexo_fl.config.keys import (
    KeyInfo,
    Lean,
    Scalar,
    as_float,
    choice,
    formed,
    moment,
    number,
    one_of,
    switch,
    text,
    text_of_number,
    text_of_weights,
    texts,
    value_of,
    whole,
)
from retexo_fl.config.synonyms import SYNONYMS
from retexo_fl.config.value_forms import (
    AGGREGATOR,
    ATTENDING,
    BUDGET,
    CLASS_WEIGHTS,
    DEVICES,
    FANOUTS,
    LINKS,
    LOSS,
    METRIC,
    MODELS,
    PARTITIONER,
    SPLIT,
    shown,
)
from retexo_fl.errors import ConfigurationError
from retexo_fl.files import bare_name, several_paths
from retexo_fl.methods.ridge.keys import misfits_of_ridge
from retexo_fl.plugins import PYG, is_plugin

ANY, OWN = Lean.ANY, Lean.OWN


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """Everything that decides a training: equal configurations give equal bits.

    Its attributes are the keys of docs/options.md, in snake case.
    """

    dataset: str = text(
        "digits",
        "Data set: 'digits' (built in), 'synthetic[:...]', public NAME (`retexo datasets`), "
        "NAME of --data-dir/NAME.npz, folder, .npz file, or module:attribute.",
        panel="Graph",
        lean=ANY,
    )
    data_dir: str = text("", "Folder of .npz data sets.", metavar="DIR", may_change=True, lean=ANY)
    nodes: str = texts(
        "Table of all nodes (.csv, .parquet, .npz, .txt); repeat for each type. Replaces "
        "--dataset.",
        metavar="FILE",
        may_change=True,
        lean=ANY,
    )
    edges: str = texts(
        "Table of all edges (.csv, .parquet, .npz, .txt, .nt); repeat for each relation. "
        "Needs --nodes.",
        metavar="FILE",
        may_change=True,
        lean=ANY,
    )
    features: str = text(
        "",
        "Feature recipe for the columns of --nodes (`retexo features fit`), 'auto' to make "
        "one, or 'none'.",
        metavar="FILE",
        may_change=True,
        lean=ANY,
    )
    key_column: str = text("", "Column of node keys; default 'key'.", lean=ANY)
    label_column: str = text(
        "",
        "Labels: column of --nodes (default 'label'), array or attribute (default 'y'), or column "
        "of y by number or name.",
        lean=ANY,
        read=text_of_number,
    )
    unlabelled_values: str = text(
        "",
        "Labels that mean 'unlabelled', as an empty cell does.",
        metavar="A,B",
        lean=ANY,
    )
    drop_columns: str = texts(
        "Columns that --features auto leaves out, such as other labels.", metavar="A,B", lean=ANY
    )
    repeated_nodes: str = one_of(
        "refuse",
        "Rows of --nodes with one key: refuse, or keep one.",
        *("refuse", "first", "last"),
        lean=ANY,
    )
    source_column: str = text("", "Column of edge sources; default 'source'.", lean=ANY)
    target_column: str = text("", "Column of edge targets; default 'target'.", lean=ANY)
    weight_column: str = text("", "Column of edge weights; default 'weight'.", lean=ANY)
    time_column: str = text("", "Column of edge times; default 'time'.", lean=ANY)
    predicates: str = text(
        "",
        "Predicates of --edges that are edges (column predicate, or N-Triples); default all.",
        metavar="A,B",
        lean=ANY,
    )
    node_time_column: str = text(
        "", "Column of node times for --split time:VAL/TEST; default 'time'.", lean=ANY
    )
    type_column: str = text(
        "",
        "Column with types of nodes and relations of edges; models rel-* read 'type'.",
        lean=ANY,
    )
    label_types: str = text(
        "",
        "Node types whose labels are learned; default all.",
        metavar="A,B",
        lean=ANY,
    )
    delimiter: str = text(
        "",
        "Separator of CSV tables: comma, semicolon, tab or pipe; default detected.",
        metavar="MARK",
        lean=ANY,
    )
    decimal: str = text(
        "",
        "Decimal mark of CSV tables: point or comma; default detected.",
        metavar="MARK",
        lean=ANY,
    )
    encoding: str = text(
        "",
        "Encoding of CSV tables, such as windows-1252; default detected.",
        metavar="NAME",
        lean=ANY,
    )
    partitions: str = text(
        "",
        "Folder of parts from `retexo partition make`. Replaces --dataset.",
        metavar="DIR",
        may_change=True,
        lean=ANY,
    )
    edges_are: str = one_of(
        "undirected",
        "Direction of edges, from source to target; models dir-* use it.",
        *("undirected", "directed"),
        lean=ANY,
    )
    merge_edges: str = one_of(
        "refuse",
        "Repeated edges: refuse, or merge weights (1 if none) and attributes.",
        *("refuse", "sum", "mean", "max"),
        lean=ANY,
    )
    self_loops: str = one_of(
        "refuse",
        "Edges from a node to itself.",
        "refuse",
        "drop",
        lean=ANY,
    )
    unknown_nodes: str = one_of(
        "refuse",
        "Edges to an unknown node.",
        "refuse",
        "drop",
        lean=ANY,
    )
    edges_before: str = moment(
        "Drop edges from this time on, such as 2024-03-01; three with / between them for "
        "train, validation and test nodes.",
        metavar="TIME",
        lean=ANY,
    )
    clients: int = whole(5, "Number of clients.", least=1, lean=ANY)
    partitioner: str = formed(
        "random",
        "How nodes are assigned to clients. attribute: a client per value; dirichlet: a "
        "larger BETA makes clients' classes alike.",
        PARTITIONER,
        lean=ANY,
    )
    split: str = formed(
        "auto",
        "Train, validation and test nodes (links: edges). auto: published masks, else "
        "random:0.2/0.1/0.7 (links 0.85/0.05/0.1).",
        SPLIT,
        metavar="SPEC",
        lean=ANY,
    )
    task: str = one_of(
        "classes",
        "One class, several labels or a number per node, or links: which nodes have an edge.",
        *GOALS,
        lean=("classes",),
    )
    relation: str = text(
        "",
        "Relation that task links learns: NAME, or SOURCE/NAME/TARGET; default the only one.",
        metavar="NAME",
        lean=ANY,
    )
    feature_normalisation: str = one_of(
        "none", "Scaling of the input features.", "none", "row", "l2", lean=ANY
    )

    structure: str = one_of(
        "columns",
        "Features for nodes without any: columns of edges and degrees; degrees alone; or with "
        "nearby train labels, which peers see.",
        *("columns", "degrees", "labels"),
        lean=ANY,
    )
    structure_columns: int = whole(64, "Structural columns.", least=1, most=1024, lean=ANY)
    structure_steps: int = whole(
        12,
        "Steps along edges that make structural columns; each but the first exchanges vectors.",
        least=2,
        most=64,
        lean=ANY,
    )
    structure_bits: int = choice(
        4,
        "Bits per value in these vectors (8 in the last three steps); 32 is exact.",
        *(4, 8, 32),
        lean=ANY,
    )

    algorithm: str = one_of(
        "lazy",
        "lazy: layer by layer; standard, bns (samples boundary nodes), drop (no crossing edges), "
        "central: end to end; propagation: of labels.",
        *ALGORITHMS,
        panel="Model and training",
        lean=OWN,
    )
    model: str = one_of(
        "sage",
        "GNN layer. dir-*: directed edges; rel-*: types; gine: edge attributes; pyg:NAME: a "
        "PyG convolution.",
        *MODELS,
        plugin=True,
        lean=("gcn", "sage", "gin", "gat", "rel-sage", "rel-gcn", "rel-gat"),
    )
    layers: int = whole(
        2,
        "GNN layers; lazy training trains one stage per layer.",
        least=1,
        most=32,
        lean=(2,),
    )
    hidden: int = whole(64, "Width of hidden layers.", least=1, most=65_536, lean=ANY)
    heads: int = whole(
        8, "Attention heads of GAT; each is hidden/heads wide.", least=1, most=256, lean=ANY
    )
    num_bases: int = whole(
        0,
        "Basis matrices that relations of rel-gcn share, where rows have one width; 0: each "
        "its own.",
        least=0,
        most=256,
        lean=ANY,
    )
    unlabelled_types: str = one_of(
        "drawn",
        "Weights of unlabelled types: random (drawn), trained by receivers' labels (rel-sage, "
        "rel-gcn), or then refined with the last layer.",
        *("drawn", "trained", "refined"),
        lean=ANY,
    )
    rounds: int = whole(60, "Rounds per layer; end to end, of the whole model.", least=1, lean=ANY)
    last_rounds: int = whole(
        0,
        "Rounds of the last layer (end to end: of all) without early stopping; 0: as rounds.",
        least=0,
        may_change=True,
        lean=ANY,
    )
    basis: str = one_of(
        "none",
        "Project features onto directions that train labels select.",
        *("none", "supervised"),
        lean=OWN,
    )
    basis_rows: str = one_of(
        "own",
        "Rows for the basis: own, the first layer's sums (features cross), the better on "
        "validation nodes, or far sums (types).",
        *("own", "sums", "choose", "far"),
        lean=ANY,
    )
    basis_blocks: int = whole(
        3,
        "Blocks of the basis, each with one coordinate per class; 1 only with solver ridge.",
        least=1,
        most=64,
        lean=ANY,
    )
    basis_bits: int = choice(
        32,
        "Bits per value of the basis and its sums; 32 is exact.",
        *(32, 8, 4),
        lean=ANY,
    )
    patience: int = whole(
        0,
        "Rounds without improvement in validation that stop a stage; 0 for none.",
        least=0,
        lean=ANY,
    )
    solver: str = one_of(
        "rounds",
        "Train in rounds, or solve the last layer by ridge regression on sums (gcn, sage, "
        "rel-sage, rel-gcn; ignores optimizer, dropout).",
        *("rounds", "ridge"),
        lean=OWN,
    )
    ridge_penalty: str = one_of(
        "gcv",
        "Ridge penalty by generalised cross-validation on train nodes (gcv), or by validation "
        "error.",
        *("gcv", "validation"),
        lean=ANY,
    )
    warm_start: bool = switch(
        "Start a stage's classifier from the head of the stage before.", lean=OWN
    )
    candidates: str = one_of(
        "none",
        "Variants for validation nodes to choose from: own-row omits own rows, drawn-types "
        "also drawn types, few-blocks uses three.",
        *("none", "own-row", "drawn-types", "few-blocks", "auto"),
        lean=ANY,
    )
    floor: str = one_of(
        "none",
        "Keep a one-shot model if it validates better (two-layer gcn, sage; needs classes, "
        "row-bits below 32, boundary-plan rows).",
        *("none", "one-shot"),
        lean=ANY,
    )
    optimizer: str = one_of(
        "adam",
        "Server optimizer for mean gradients (with one local step).",
        *("adam", "sgd", "momentum", "yogi", "adagrad", "lbfgs"),
        lean=OWN,
    )
    learning_rate: float = number(
        0.01,
        "Step size of optimizer or server-optimizer.",
        "above 0, at most 10",
        lambda v: 0 < v <= 10,
        lean=OWN,
    )
    dropout: float = number(
        0.3,
        "Share of input values that dropout zeroes.",
        "from 0 to below 1",
        lambda v: 0 <= v < 1,
        lean=OWN,
    )
    boundary_rate: float = number(
        0.1,
        "Share of boundary nodes that bns samples.",
        "above 0, at most 1",
        lambda v: 0 < v <= 1,
        lean=ANY,
    )
    boundary_scaling: str = one_of(
        "inverse",
        "Whether bns divides vectors by their sampling rate.",
        "inverse",
        "none",
        lean=ANY,
    )
    activations: str = one_of(
        "keep",
        "Activations of an end-to-end round: keep, or recompute to save memory.",
        *("keep", "recompute"),
        lean=ANY,
    )
    local_steps: int = whole(
        1,
        "A client's optimizer steps per round; more than 1 is federated averaging.",
        least=1,
        most=10_000,
        lean=ANY,
    )
    local_optimizer: str = one_of(
        "adam", "Optimizer of several local steps.", "adam", "sgd", lean=ANY
    )
    local_learning_rate: float = number(
        0.01,
        "Step size of the local optimizer.",
        "above 0, at most 10",
        lambda v: 0 < v <= 10,
        lean=ANY,
    )
    proximal_mu: float = number(
        0.0,
        "FedProx: pull of local steps towards the round's first weights; 0 for none.",
        "from 0 to 1000",
        lambda v: 0 <= v <= 1000,
        lean=OWN,
    )
    local_correction: str = one_of(
        "none",
        "SCAFFOLD: correct local steps by control variates, sent beside the weights.",
        *("none", "scaffold"),
        lean=OWN,
    )
    server_optimizer: str = one_of(
        "mean",
        "Updates of several local steps: add the mean, or use it as a gradient with learning-rate.",
        *("mean", "sgd", "momentum", "adam", "yogi", "adagrad"),
        lean=OWN,
    )
    link_head: str = one_of(
        "dot",
        "Score of two nodes in task links: dot product, or a small network on products.",
        *("dot", "mlp"),
        lean=ANY,
    )
    negatives: int = whole(
        1,
        "Pairs without an edge per train edge and round, in task links.",
        least=1,
        most=1000,
        lean=ANY,
    )
    loss: str = formed(
        "auto",
        "Loss, summed over nodes. auto: cross-entropy, for regression squared.",
        LOSS,
        metavar="SPEC",
        lean=ANY,
    )
    class_weights: str = formed(
        "none",
        "Loss weights by class: inverse to frequency (balanced), or numbers, in order or by name.",
        CLASS_WEIGHTS,
        metavar="SPEC",
        lean=ANY,
        read=text_of_weights,
    )
    metric: str = formed(
        "auto",
        "Metric that selects weights on validation nodes. auto: accuracy; several labels and "
        "links roc-auc; regression rmse.",
        METRIC,
        metavar="SPEC",
        lean=ANY,
    )
    per_client_metrics: bool = switch("Each client also sends its own test metric.", lean=ANY)
    weight_decay: float = number(
        5e-4, "Coupled L2 penalty.", "from 0 to 1", lambda v: 0 <= v <= 1, lean=OWN
    )
    aggregator: str = formed(
        "mean",
        "How the server combines updates. SHARE (below 0.5): cut at each end; COUNT: "
        "dishonest clients; NORM: longest update.",
        AGGREGATOR,
        lean=OWN,
    )
    secure_aggregation: str = one_of(
        "none",
        "masked: the server gets only masked sums over cohorts (3 training clients or more). "
        "Limits: docs/masked-sums.md.",
        *("none", "masked"),
        lean=ANY,
    )
    cohort_size: int = whole(
        0,
        "Clients per masked sum; 0 for about five. In a deployment owners agree on it.",
        least=0,
        most=65,
        lean=ANY,
    )
    update_dp: float = number(
        0.0,
        "Epsilon of differential privacy for each train node's own loss in the whole run; 0 "
        "for none.",
        "from 0 to 100",
        lambda v: 0 <= v <= 100,
        lean=OWN,
    )
    update_dp_delta: float = number(
        1e-5,
        "Delta for update-dp, far below one in the number of train nodes.",
        "from 1e-15 to 0.1",
        lambda v: 1e-15 <= v <= 0.1,
        lean=ANY,
    )
    update_dp_clip: float = number(
        1.0,
        "Clipping norm of a train node's gradient, or contribution with solver ridge, under "
        "update-dp.",
        "from 1e-6 to 1e6",
        lambda v: 1e-6 <= v <= 1e6,
        lean=ANY,
    )
    seed: int = whole(0, "Seed of every random choice except noise.", least=0, lean=ANY)
    dtype: str = one_of(
        "float32", "Type of arithmetic and vectors.", "float32", "float64", lean=ANY
    )
    threads: int = whole(
        1,
        "CPU threads per client; another number changes last bits.",
        least=1,
        most=256,
        lean=ANY,
    )

    sampler: str = one_of(
        "none",
        "Mini-batches of drop and central: all neighbours, sampled ones, subgraphs around "
        "nodes, or mostly cached ones.",
        *("none", "full", "neighbour", "shadow", "gns"),
        panel="Mini-batches and devices",
        lean=OWN,
    )
    fanouts: str = formed(
        "15/10",
        "Neighbours sampled per node, from the last layer to the first.",
        FANOUTS,
        metavar="SPEC",
        lean=ANY,
    )
    batch_nodes: int = whole(1024, "Train nodes per mini-batch.", least=1, lean=ANY)
    cache_share: float = number(
        0.2,
        "Share of nodes that gns caches.",
        "above 0, at most 1",
        lambda v: 0 < v <= 1,
        lean=ANY,
    )
    cache_epochs: int = whole(1, "Epochs between samplings of the gns cache.", least=1, lean=ANY)
    gpu_cache: str = one_of(
        "degree",
        "Feature rows that a GPU caches: of highest degree, or last used (lru); not for gns.",
        *("degree", "lru"),
        lean=ANY,
    )
    devices: str = formed(
        "auto",
        "Devices of a client; missing GPUs are left out. auto: more where a lazy stage gains.",
        DEVICES,
        metavar="SPEC",
        may_change=True,
        lean=ANY,
    )
    balance: str = one_of(
        "dynamic",
        "Devices share work by measured speed, by the first epoch's, or equally.",
        "dynamic",
        "static",
        "equal",
        may_change=True,
        lean=ANY,
    )

    boundary_plan: str = one_of(
        "rows",
        "Vectors that clients send: boundary rows, the fewest rows and sums (gcn, sage, gin), "
        "or whichever takes fewer bytes.",
        *("rows", "cover", "auto"),
        panel="Exchange",
        lean=ANY,
    )
    second_rows: str = one_of(
        "full",
        "Later rows: from their owners (full), as a predicted class, or not at all, which "
        "hides inner links.",
        *("full", "class", "none"),
        lean=ANY,
    )
    row_dp: float = number(
        0.0,
        "Experimental: epsilon for a node's features, by a noised class instead of its first "
        "row; 0 sends rows.",
        "0, or from 0.01 to 100",
        lambda v: v == 0 or 0.01 <= v <= 100,
        lean=ANY,
    )
    row_bits: int = choice(
        32,
        "Bits per value in vectors, rounded stochastically; 32 is exact.",
        *(32, 8, 4, 2),
        lean=ANY,
    )
    update_bits: int = choice(
        32,
        "Bits per value in updates, rounded stochastically; 32 is exact.",
        *(32, 8, 4, 2, 1),
        lean=ANY,
    )
    weight_bits: int = choice(
        32,
        "Bits per value in weights, sent as differences; 32 sends all weights exactly.",
        *(32, 8, 4, 2, 1),
        lean=ANY,
    )
    codec: str = one_of(
        "lossless",
        "Vectors: the shortest lossless form, every value (dense, also of updates), or fixed "
        "point for exact sums.",
        *("lossless", "dense", "fixed"),
        lean=("lossless", "fixed"),
    )

    missing_peers: str = one_of(
        "wait",
        "Vectors missing at the exchange deadline: fail (wait), or continue without them (drop).",
        "wait",
        "drop",
        panel="Faults and time",
        may_change=True,
        lean=ANY,
    )
    exchange_deadline_s: float = number(
        600.0,
        "Seconds for an exchange.",
        "above 0",
        lambda v: v > 0,
        may_change=True,
        lean=ANY,
    )
    exchange_poll_s: float = number(
        60.0,
        "Longest seconds between two polls of a deployed exchange.",
        "above 0",
        lambda v: v > 0,
        may_change=True,
        lean=ANY,
    )
    message_timeout_s: float = number(
        3600.0,
        "Seconds for a client's answer to a message.",
        "above 0",
        lambda v: v > 0,
        may_change=True,
        lean=ANY,
    )
    min_clients: int = whole(
        0,
        "Quorum: answers that close a round at round-deadline-s; 0 for all.",
        least=0,
        lean=ANY,
    )
    round_deadline_s: float = number(
        0.0,
        "Seconds after which min-clients answers close a round; 0 for none.",
        "at least 0",
        lambda v: v >= 0,
        lean=ANY,
    )
    checkpoint_every: int = whole(
        1,
        "Rounds between checkpoints; at most two per second are written.",
        least=1,
        lean=ANY,
    )

    introductions: bool = switch(
        "The server gives clients without a roster all certificates and addresses.",
        panel="Clients that find each other",
        may_change=True,
        lean=ANY,
    )
    relay: bool = switch(
        "The server relays encrypted blocks between clients that cannot reach each other.",
        may_change=True,
        lean=ANY,
    )

    engine: str = one_of(
        "inline",
        "Where clients run: this process, Flower's simulation, or their own machines.",
        *("inline", "flower", "deployment"),
        panel="Where it runs",
        may_change=True,
        lean=ANY,
    )
    links: str = formed(
        "ideal",
        "Simulated network of the inline engine, in virtual time.",
        LINKS,
        metavar="SPEC",
        lean=ANY,
    )
    memory_budget: str = formed(
        "auto",
        "Memory limit of this process. Rows beyond it go to disk (inline engine; lazy gcn, "
        "sage, gin).",
        BUDGET,
        metavar="SIZE",
        may_change=True,
        lean=ANY,
    )
    out: str = text(
        "",
        "Run directory; default runs/DATASET-MODEL-TIME.",
        metavar="DIR",
        may_change=True,
        lean=ANY,
    )
    resume: str = text(
        "",
        "Directory of an interrupted run to resume.",
        metavar="RUN",
        may_change=True,
        lean=ANY,
    )

    def __repr__(self) -> str:
        chosen = {
            item.name: getattr(self, item.name)
            for item in fields(self)
            if getattr(self, item.name) != item.default
        }
        return f"RunConfig({', '.join(f'{name}={value!r}' for name, value in chosen.items())})"

    def __post_init__(self) -> None:
        """Check types, ranges and what keys demand of each other."""
        for key, value in config_values(self).items():
            check_value(key, value)
        check_together(config_values(self))

    @property
    def goal(self) -> Goal:
        """What its task is."""
        return GOALS[self.task]

    @property
    def loss_name(self) -> str:
        """The loss, where ``loss`` leaves it to the task."""
        return self.goal.loss_name(self.loss)

    @property
    def metric_name(self) -> str:
        """The metric, where ``metric`` leaves it to the task."""
        return self.goal.metric_name(self.metric)

    @property
    def split_name(self) -> str:
        """The split, where ``split`` leaves it to the task."""
        return self.goal.split_name(self.split)

    @property
    def traits(self) -> Algorithm:
        """What sets its algorithm apart."""
        return ALGORITHMS[self.algorithm]

    @property
    def has_rounds(self) -> bool:
        """Whether layers are trained in rounds."""
        return self.traits.trains and self.solver == "rounds"

    @property
    def counts_plans(self) -> bool:
        """Whether its plan is the one of fewer bytes, which can be counted before it begins.

        Rounded values take at most a byte each, those that are zero a bit. How many bytes hidden
        rows take that are not rounded, depends far more on how many of their values are zero, and
        rows have more of these than sums.
        """
        is_known = self.row_bits < 32 or self.codec == "dense" or self.layers == 1
        is_left = self.boundary_plan == "auto" and self.algorithm == "lazy"
        # A client makes rows of single nodes, not of sums.
        is_left = is_left and self.second_rows == "full"
        return is_left and is_known and self.goal.sums_suffice

    @property
    def has_noise(self) -> bool:
        """Whether clients need a secret from which noise follows."""
        return self.update_dp > 0 or self.row_dp > 0

    @property
    def row_epsilon(self) -> float:
        """Epsilon of what peers get of a node's features: 0 of nothing, without noise infinite."""
        if self.traits.drops_edges:
            return 0.0
        return self.row_dp or math.inf

    @property
    def later_rows(self) -> str:
        """What peers are sent that follows from edges inside a part, by ``second-rows``."""
        return "none" if self.traits.drops_edges else self.second_rows

    @property
    def feature_coding(self) -> dict[str, Any]:
        """How input features cross: for which layer, scaled and written how."""
        return {
            "model": self.model,
            "normalisation": self.feature_normalisation,
            "dtype": self.dtype,
            # Few bits are only for what is not shorter without loss, but on one grid.
            "codec": self.row_codec if self.codec == "fixed" else self.codec,
        }

    @property
    def row_codec(self) -> str:
        """How vectors are written before a stage: ``codec``, or in few bits a value."""
        if self.row_bits == 32:
            return self.codec
        return f"{'fixed' if self.codec == 'fixed' else 'levels'}{self.row_bits}"

    @property
    def stage_rounds(self) -> tuple[int, ...]:
        """How many rounds each layer is trained for at most."""
        if not self.traits.trains:
            return (0,) * self.layers
        if self.solver == "ridge":
            # What the last one is solved by counts as a round.
            return (*[0] * (self.layers - 1), 1)
        # Before what layers read of features crosses, features do.
        opening = (0,) if self.crosses_ahead else ()
        last = self.last_rounds or self.rounds
        # End to end there is one stage, which is the last.
        before = last if self.traits.end_to_end else self.rounds
        return (*opening, *(before,) * (self.layers - 1), last)

    @property
    def crosses_ahead(self) -> bool:
        """Whether what a layer reads crosses before it is trained, so that peers have it, too.

        So both ends of an edge do that is learned; where layers attend to neighbours, which they
        are trained to, one end's client has all that its own row is made of.
        """
        return self.task == "links" and self.model not in ATTENDING

    @property
    def joins_one_end(self) -> bool:
        """Whether of a pair one end alone is joined with its neighbours: where layers attend."""
        return self.task == "links" and not self.crosses_ahead

    @property
    def wants_floor(self) -> bool:
        """Whether a trained model is compared with one that is solved for, where that can be."""
        return self.floor == "one-shot" and not self.floor_misfits

    @property
    def floor_misfits(self) -> tuple[str, ...]:
        """Keys whose values a floor does not go with."""
        return tuple(misfits_of_ridge(config_values(self)))

    @property
    def asked_types(self) -> frozenset[str]:
        """Types of nodes whose labels are learned, by name; none for all that have labels."""
        return frozenset(filter(None, map(str.strip, self.label_types.split(","))))

    @property
    def dropped_columns(self) -> tuple[str, ...]:
        """Columns that a recipe which is made leaves out."""
        return tuple(filter(None, map(str.strip, self.drop_columns.split(","))))

    @property
    def has_candidates(self) -> bool:
        """Whether a stage may be trained several times, of which validation nodes choose.

        Clients then count right answers on train nodes, too.
        """
        return (
            self.candidates != "none"
            and self.has_rounds
            and self.local_steps == 1
            and self.goal.counts_right
            and self.goal.splits_nodes
            and not self.traits.end_to_end
        )

    @property
    def tells_cached_rows(self) -> bool:
        """Whether clients send at the test what mini-batches have read where features are cached.

        Under masks all send it or none, so that the run's own keys decide: a sampler that caches,
        or a GPU by name. Else whoever has no cache sends nothing.
        """
        if self.sampler == "none":
            return False
        caches = self.sampler == "gns" or "cuda" in self.devices
        return caches or self.secure_aggregation != "masked"

    @property
    def stages(self) -> int:
        """How many stages there are: one for each layer, or one that trains all layers.

        One more comes first where features cross ahead of what layers read of them.
        """
        return 1 if self.traits.end_to_end else len(self.stage_rounds)

    @property
    def graph_name(self) -> str:
        """What a run calls its graph: the folder of parts, the table of nodes, or the data set.

        In a deployment the data set is a name and no more; without one, the graph is ``parts``.
        """
        if self.partitions:
            return Path(self.partitions).name
        if self.engine == "deployment" and self.dataset == default_values()["dataset"]:
            return "parts"
        return "+".join(map(bare_name, several_paths(self.nodes))) or self.dataset


#: Keys whose plug-ins a client imports, in a training and in an inference.
_CLIENT_PLUGINS: Final = ("model", "loss", "metric")
#: Keys of which a built-in value may have a name after its colon, as a plug-in has.
_NAMING: Final = MappingProxyType({"partitioner": PARTITIONER, "metric": METRIC})
#: Keys that say where a run lives, not what it computes; they are not replayed.
PLACE_KEYS: Final = frozenset({"out", "resume"})


def key_of(field_name: str) -> str:
    """Return the kebab-case key of a :class:`RunConfig` field."""
    return field_name.replace("_", "-")


def field_of(key: str) -> str:
    """Return the :class:`RunConfig` field of a kebab-case key.

    Raises:
        ConfigurationError: There is no such key; the message names the nearest one.
    """
    if key in key_infos():
        return key.replace("-", "_")
    near = nearest_key(key)
    hint = f"; did you mean '{near}'?" if near else ""
    raise ConfigurationError(f"{key}: unknown configuration key{hint}")


def nearest_key(name: str) -> str | None:
    """Return the key that a name probably means: another tool's name for it, or nearly its own."""
    plain = name.strip("-").replace("-", "_").lower()
    names = [item.name for item in fields(RunConfig)]
    if plain in names:
        return key_of(plain)
    if plain in SYNONYMS:
        return SYNONYMS[plain]
    near = difflib.get_close_matches(plain, names, n=1)
    # A slip in what others call it.
    others = difflib.get_close_matches(plain, SYNONYMS, n=1, cutoff=0.85)
    if near or not others:
        return key_of(near[0]) if near else None
    return SYNONYMS[others[0]]


@cache
def key_infos() -> Mapping[str, KeyInfo]:
    """Return what is known about each key, in the order in which they are documented."""
    infos = {key_of(item.name): item.metadata["key"] for item in fields(RunConfig)}
    return MappingProxyType(infos)


@cache
def panels() -> Mapping[str, tuple[str, ...]]:
    """Return the keys under their headings, in order."""
    found: dict[str, tuple[str, ...]] = {}
    heading = ""
    for name, info in key_infos().items():
        heading = info.panel or heading
        found[heading] = (*found.get(heading, ()), name)
    return MappingProxyType(found)


@cache
def free_keys() -> frozenset[str]:
    """Return the keys in which attempts of one job may differ."""
    return frozenset(name for name, info in key_infos().items() if info.may_change)


def config_digest(config: RunConfig) -> bytes:
    """Return 32 bytes that bind every key but :func:`free_keys`, which a resume may change."""
    bound = {k: v for k, v in sorted(config_values(config).items()) if k not in free_keys()}
    return hashlib.sha256(b"retexo configuration 1" + json.dumps(bound).encode()).digest()


@cache
def default_values() -> Mapping[str, Scalar]:
    """Return every key with its default."""
    defaults: dict[str, Any] = {key_of(item.name): item.default for item in fields(RunConfig)}
    return MappingProxyType(defaults)


def make_config(values: Mapping[str, object]) -> RunConfig:
    """Build a configuration from kebab-case keys; keys that are absent take their default.

    Args:
        values: As read from the command line, a TOML file, or Flower's run configuration. A whole
            number is accepted where a float is expected.

    Raises:
        ConfigurationError: A key is unknown, or its value has the wrong type or range.
    """
    named: dict[str, Any] = {field_of(key): widened(key, value) for key, value in values.items()}
    return RunConfig(**named)


def widened(key: str, value: object) -> object:
    """Convert a value that is not of its key's type: to a float, or to the text of a time."""
    read = key_infos()[key].read
    return as_float(value, type(default_values()[key])) if read is None else read(value)


def parse_value(key: str, text: str) -> Scalar:
    """Read one value as it is written on a command line.

    Raises:
        ConfigurationError: The key is unknown, or the text is no value that it allows.
    """
    field_of(key)
    info = key_infos()[key]
    try:
        value = value_of(text, type(default_values()[key]))
    except ValueError as error:
        raise ConfigurationError(f"{key}: got {shown(text)}; expected {info.expected}") from error
    check_value(key, value)
    return value


def config_values(config: RunConfig) -> dict[str, Scalar]:
    """Return a configuration as kebab-case keys: the inverse of :func:`make_config`."""
    return {key: getattr(config, name) for key, name in _names_of_keys()}


@cache
def _names_of_keys() -> tuple[tuple[str, str], ...]:
    """Return each key with its field: a run asks for its values a dozen times before a round."""
    return tuple((key_of(item.name), item.name) for item in fields(RunConfig))


def named_plugins(values: Mapping[str, object]) -> dict[str, str]:
    """Return the plug-ins ``module:attribute`` of a user's own that a run imports, by key."""
    keys = ["dataset", *(key for key, info in key_infos().items() if info.extensible)]
    named = {key: str(values[key]) for key in keys if key in values}
    return {k: text for k, text in named.items() if _is_own(k, text) and not text.startswith(PYG)}


def client_plugins(config: RunConfig) -> dict[str, str]:
    """Return what a client of a run imports, by key: plug-ins, and PyG for ``pyg:NAME``."""
    values = config_values(config)
    named = {key: str(values[key]) for key in _CLIENT_PLUGINS}
    return {key: text for key, text in named.items() if _is_own(key, text)}


def _is_own(key: str, text: str) -> bool:
    """Return whether a value that is allowed names no built-in thing."""
    form = _NAMING.get(key)
    return is_plugin(text) and (form is None or text.partition(":")[0] not in form.names)


def check_value(key: str, value: object) -> None:
    """Check one value by its kebab-case key.

    Raises:
        ConfigurationError: It is of another type, or not one that the key allows.
    """
    check_alone(key, value, key_infos()[key], type(default_values()[key]))
