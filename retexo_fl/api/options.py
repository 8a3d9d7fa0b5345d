"""The keys of a run as editors and type checkers know them: completed, with their values.

Made from :class:`~retexo_fl.config.RunConfig` by ``python -m tests.support.options``; a test
compares the two.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any, Literal, TypedDict


class Options(TypedDict, total=False):
    """Keys of all calls."""

    # ---- Graph ----
    dataset: str | Callable[..., Any] | None
    """Data set: 'digits' (built in), 'synthetic[:...]', public NAME (`retexo datasets`), NAME
    of --data-dir/NAME.npz, folder, .npz file, or module:attribute.
    """
    data_dir: str | Path | None
    """Folder of .npz data sets."""
    nodes: str | Path | Sequence[str | Path] | None
    """Table of all nodes (.csv, .parquet, .npz, .txt); repeat for each type. Replaces
    --dataset.
    """
    edges: str | Path | Sequence[str | Path] | None
    """Table of all edges (.csv, .parquet, .npz, .txt, .nt); repeat for each relation. Needs
    --nodes.
    """
    features: str | Path | None
    """Feature recipe for the columns of --nodes (`retexo features fit`), 'auto' to make one, or
    'none'.
    """
    key_column: str | None
    """Column of node keys; default 'key'."""
    label_column: str | None
    """Labels: column of --nodes (default 'label'), array or attribute (default 'y'), or column
    of y by number or name.
    """
    unlabelled_values: str | None
    """Labels that mean 'unlabelled', as an empty cell does."""
    drop_columns: str | None
    """Columns that --features auto leaves out, such as other labels."""
    repeated_nodes: Literal["refuse", "first", "last"] | None
    """Rows of --nodes with one key: refuse, or keep one."""
    source_column: str | None
    """Column of edge sources; default 'source'."""
    target_column: str | None
    """Column of edge targets; default 'target'."""
    weight_column: str | None
    """Column of edge weights; default 'weight'."""
    time_column: str | None
    """Column of edge times; default 'time'."""
    predicates: str | None
    """Predicates of --edges that are edges (column predicate, or N-Triples); default all."""
    node_time_column: str | None
    """Column of node times for --split time:VAL/TEST; default 'time'."""
    type_column: str | None
    """Column with types of nodes and relations of edges; models rel-* read 'type'."""
    label_types: str | None
    """Node types whose labels are learned; default all."""
    delimiter: str | None
    """Separator of CSV tables: comma, semicolon, tab or pipe; default detected."""
    decimal: str | None
    """Decimal mark of CSV tables: point or comma; default detected."""
    encoding: str | None
    """Encoding of CSV tables, such as windows-1252; default detected."""
    edges_are: Literal["undirected", "directed"] | None
    """Direction of edges, from source to target; models dir-* use it."""
    merge_edges: Literal["refuse", "sum", "mean", "max"] | None
    """Repeated edges: refuse, or merge weights (1 if none) and attributes."""
    self_loops: Literal["refuse", "drop"] | None
    """Edges from a node to itself."""
    unknown_nodes: Literal["refuse", "drop"] | None
    """Edges to an unknown node."""
    edges_before: str | float | date | None
    """Drop edges from this time on, such as 2024-03-01; three with / between them for train,
    validation and test nodes.
    """
    clients: int | None
    """Number of clients."""
    partitioner: str | Callable[..., Any] | None
    """How nodes are assigned to clients. attribute: a client per value; dirichlet: a larger
    BETA makes clients' classes alike.
    """
    split: str | Callable[..., Any] | None
    """Train, validation and test nodes (links: edges). auto: published masks, else
    random:0.2/0.1/0.7 (links 0.85/0.05/0.1).
    """
    task: Literal["classes", "multi-label", "regression", "links"] | None
    """One class, several labels or a number per node, or links: which nodes have an edge."""
    relation: str | None
    """Relation that task links learns: NAME, or SOURCE/NAME/TARGET; default the only one."""
    feature_normalisation: Literal["none", "row", "l2"] | None
    """Scaling of the input features."""
    structure: Literal["columns", "degrees", "labels"] | None
    """Features for nodes without any: columns of edges and degrees; degrees alone; or with
    nearby train labels, which peers see.
    """
    structure_columns: int | None
    """Structural columns."""
    structure_steps: int | None
    """Steps along edges that make structural columns; each but the first exchanges vectors."""
    structure_bits: Literal[4, 8, 32] | None
    """Bits per value in these vectors (8 in the last three steps); 32 is exact."""
    # ---- Model and training ----
    algorithm: Literal["lazy", "standard", "bns", "drop", "central", "propagation"] | None
    """lazy: layer by layer; standard, bns (samples boundary nodes), drop (no crossing edges),
    central: end to end; propagation: of labels.
    """
    model: (
        Literal[
            "gcn",
            "sage",
            "gat",
            "gin",
            "sage-pool",
            "gine",
            "dir-gcn",
            "dir-sage",
            "dir-gat",
            "dir-gin",
            "rel-sage",
            "rel-gcn",
            "rel-gat",
        ]
        | str
        | Callable[..., Any]
        | None
    )
    """GNN layer. dir-*: directed edges; rel-*: types; gine: edge attributes; pyg:NAME: a PyG
    convolution.
    """
    layers: int | None
    """GNN layers; lazy training trains one stage per layer."""
    hidden: int | None
    """Width of hidden layers."""
    heads: int | None
    """Attention heads of GAT; each is hidden/heads wide."""
    num_bases: int | None
    """Basis matrices that relations of rel-gcn share, where rows have one width; 0: each its
    own.
    """
    unlabelled_types: Literal["drawn", "trained", "refined"] | None
    """Weights of unlabelled types: random (drawn), trained by receivers' labels (rel-sage, rel-
    gcn), or then refined with the last layer.
    """
    rounds: int | None
    """Rounds per layer; end to end, of the whole model."""
    last_rounds: int | None
    """Rounds of the last layer (end to end: of all) without early stopping; 0: as rounds."""
    basis: Literal["none", "supervised"] | None
    """Project features onto directions that train labels select."""
    basis_rows: Literal["own", "sums", "choose", "far"] | None
    """Rows for the basis: own, the first layer's sums (features cross), the better on
    validation nodes, or far sums (types).
    """
    basis_blocks: int | None
    """Blocks of the basis, each with one coordinate per class; 1 only with solver ridge."""
    basis_bits: Literal[32, 8, 4] | None
    """Bits per value of the basis and its sums; 32 is exact."""
    patience: int | None
    """Rounds without improvement in validation that stop a stage; 0 for none."""
    solver: Literal["rounds", "ridge"] | None
    """Train in rounds, or solve the last layer by ridge regression on sums (gcn, sage, rel-
    sage, rel-gcn; ignores optimizer, dropout).
    """
    ridge_penalty: Literal["gcv", "validation"] | None
    """Ridge penalty by generalised cross-validation on train nodes (gcv), or by validation
    error.
    """
    warm_start: bool | None
    """Start a stage's classifier from the head of the stage before."""
    candidates: Literal["none", "own-row", "drawn-types", "few-blocks", "auto"] | None
    """Variants for validation nodes to choose from: own-row omits own rows, drawn-types also
    drawn types, few-blocks uses three.
    """
    floor: Literal["none", "one-shot"] | None
    """Keep a one-shot model if it validates better (two-layer gcn, sage; needs classes, row-
    bits below 32, boundary-plan rows).
    """
    optimizer: Literal["adam", "sgd", "momentum", "yogi", "adagrad", "lbfgs"] | None
    """Server optimizer for mean gradients (with one local step)."""
    learning_rate: float | None
    """Step size of optimizer or server-optimizer."""
    dropout: float | None
    """Share of input values that dropout zeroes."""
    boundary_rate: float | None
    """Share of boundary nodes that bns samples."""
    boundary_scaling: Literal["inverse", "none"] | None
    """Whether bns divides vectors by their sampling rate."""
    activations: Literal["keep", "recompute"] | None
    """Activations of an end-to-end round: keep, or recompute to save memory."""
    local_steps: int | None
    """A client's optimizer steps per round; more than 1 is federated averaging."""
    local_optimizer: Literal["adam", "sgd"] | None
    """Optimizer of several local steps."""
    local_learning_rate: float | None
    """Step size of the local optimizer."""
    proximal_mu: float | None
    """FedProx: pull of local steps towards the round's first weights; 0 for none."""
    local_correction: Literal["none", "scaffold"] | None
    """SCAFFOLD: correct local steps by control variates, sent beside the weights."""
    server_optimizer: Literal["mean", "sgd", "momentum", "adam", "yogi", "adagrad"] | None
    """Updates of several local steps: add the mean, or use it as a gradient with learning-rate."""
    link_head: Literal["dot", "mlp"] | None
    """Score of two nodes in task links: dot product, or a small network on products."""
    negatives: int | None
    """Pairs without an edge per train edge and round, in task links."""
    loss: str | Callable[..., Any] | None
    """Loss, summed over nodes. auto: cross-entropy, for regression squared."""
    class_weights: str | Sequence[float] | Mapping[str, float] | None
    """Loss weights by class: inverse to frequency (balanced), or numbers, in order or by name."""
    metric: str | Callable[..., Any] | None
    """Metric that selects weights on validation nodes. auto: accuracy; several labels and links
    roc-auc; regression rmse.
    """
    per_client_metrics: bool | None
    """Each client also sends its own test metric."""
    weight_decay: float | None
    """Coupled L2 penalty."""
    aggregator: str | Callable[..., Any] | None
    """How the server combines updates. SHARE (below 0.5): cut at each end; COUNT: dishonest
    clients; NORM: longest update.
    """
    secure_aggregation: Literal["none", "masked"] | None
    """masked: the server gets only masked sums over cohorts (3 training clients or more).
    Limits: docs/masked-sums.md.
    """
    cohort_size: int | None
    """Clients per masked sum; 0 for about five. In a deployment owners agree on it."""
    update_dp: float | None
    """Epsilon of differential privacy for each train node's own loss in the whole run; 0 for
    none.
    """
    update_dp_delta: float | None
    """Delta for update-dp, far below one in the number of train nodes."""
    update_dp_clip: float | None
    """Clipping norm of a train node's gradient, or contribution with solver ridge, under
    update-dp.
    """
    seed: int | None
    """Seed of every random choice except noise."""
    dtype: Literal["float32", "float64"] | None
    """Type of arithmetic and vectors."""
    threads: int | None
    """CPU threads per client; another number changes last bits."""
    # ---- Mini-batches and devices ----
    sampler: Literal["none", "full", "neighbour", "shadow", "gns"] | None
    """Mini-batches of drop and central: all neighbours, sampled ones, subgraphs around nodes,
    or mostly cached ones.
    """
    fanouts: str | Sequence[int] | None
    """Neighbours sampled per node, from the last layer to the first."""
    batch_nodes: int | None
    """Train nodes per mini-batch."""
    cache_share: float | None
    """Share of nodes that gns caches."""
    cache_epochs: int | None
    """Epochs between samplings of the gns cache."""
    gpu_cache: Literal["degree", "lru"] | None
    """Feature rows that a GPU caches: of highest degree, or last used (lru); not for gns."""
    devices: str | Sequence[str] | None
    """Devices of a client; missing GPUs are left out. auto: more where a lazy stage gains."""
    balance: Literal["dynamic", "static", "equal"] | None
    """Devices share work by measured speed, by the first epoch's, or equally."""
    # ---- Exchange ----
    boundary_plan: Literal["rows", "cover", "auto"] | None
    """Vectors that clients send: boundary rows, the fewest rows and sums (gcn, sage, gin), or
    whichever takes fewer bytes.
    """
    second_rows: Literal["full", "class", "none"] | None
    """Later rows: from their owners (full), as a predicted class, or not at all, which hides
    inner links.
    """
    row_dp: float | None
    """Experimental: epsilon for a node's features, by a noised class instead of its first row;
    0 sends rows.
    """
    row_bits: Literal[32, 8, 4, 2] | None
    """Bits per value in vectors, rounded stochastically; 32 is exact."""
    update_bits: Literal[32, 8, 4, 2, 1] | None
    """Bits per value in updates, rounded stochastically; 32 is exact."""
    weight_bits: Literal[32, 8, 4, 2, 1] | None
    """Bits per value in weights, sent as differences; 32 sends all weights exactly."""
    codec: Literal["lossless", "dense", "fixed"] | None
    """Vectors: the shortest lossless form, every value (dense, also of updates), or fixed point
    for exact sums.
    """
    # ---- Faults and time ----
    missing_peers: Literal["wait", "drop"] | None
    """Vectors missing at the exchange deadline: fail (wait), or continue without them (drop)."""
    exchange_deadline_s: float | None
    """Seconds for an exchange."""
    exchange_poll_s: float | None
    """Longest seconds between two polls of a deployed exchange."""
    message_timeout_s: float | None
    """Seconds for a client's answer to a message."""
    min_clients: int | None
    """Quorum: answers that close a round at round-deadline-s; 0 for all."""
    round_deadline_s: float | None
    """Seconds after which min-clients answers close a round; 0 for none."""
    checkpoint_every: int | None
    """Rounds between checkpoints; at most two per second are written."""
    # ---- Clients that find each other ----
    introductions: bool | None
    """The server gives clients without a roster all certificates and addresses."""
    relay: bool | None
    """The server relays encrypted blocks between clients that cannot reach each other."""
    # ---- Where it runs ----
    engine: Literal["inline", "flower", "deployment"] | None
    """Where clients run: this process, Flower's simulation, or their own machines."""
    links: str | None
    """Simulated network of the inline engine, in virtual time."""
    memory_budget: str | None
    """Memory limit of this process. Rows beyond it go to disk (inline engine; lazy gcn, sage,
    gin).
    """


class RunOptions(Options, total=False):
    """Keys of a run."""

    out: str | Path | None
    """Run directory; default runs/DATASET-MODEL-TIME."""


class MovedOptions(TypedDict, total=False):
    """Keys in which a resumed run may differ."""

    data_dir: str | Path | None
    nodes: str | Path | Sequence[str | Path] | None
    edges: str | Path | Sequence[str | Path] | None
    features: str | Path | None
    devices: str | Sequence[str] | None
    balance: Literal["dynamic", "static", "equal"] | None
    missing_peers: Literal["wait", "drop"] | None
    exchange_deadline_s: float | None
    exchange_poll_s: float | None
    message_timeout_s: float | None
    introductions: bool | None
    relay: bool | None
    engine: Literal["inline", "flower", "deployment"] | None
    memory_budget: str | None


class SweepOptions(TypedDict, total=False):
    """Keys of a sweep: a value, or a list of values with a run for each."""

    # ---- Graph ----
    dataset: str | Callable[..., Any] | Sequence[str | Callable[..., Any]] | None
    data_dir: str | Path | Sequence[str | Path] | None
    nodes: str | Path | Sequence[str | Path] | Sequence[str | Path | Sequence[str | Path]] | None
    edges: str | Path | Sequence[str | Path] | Sequence[str | Path | Sequence[str | Path]] | None
    features: str | Path | Sequence[str | Path] | None
    key_column: str | Sequence[str] | None
    label_column: str | Sequence[str] | None
    unlabelled_values: str | Sequence[str] | None
    drop_columns: str | Sequence[str] | None
    repeated_nodes: (
        Literal["refuse", "first", "last"] | Sequence[Literal["refuse", "first", "last"]] | None
    )
    source_column: str | Sequence[str] | None
    target_column: str | Sequence[str] | None
    weight_column: str | Sequence[str] | None
    time_column: str | Sequence[str] | None
    predicates: str | Sequence[str] | None
    node_time_column: str | Sequence[str] | None
    type_column: str | Sequence[str] | None
    label_types: str | Sequence[str] | None
    delimiter: str | Sequence[str] | None
    decimal: str | Sequence[str] | None
    encoding: str | Sequence[str] | None
    edges_are: (
        Literal["undirected", "directed"] | Sequence[Literal["undirected", "directed"]] | None
    )
    merge_edges: (
        Literal["refuse", "sum", "mean", "max"]
        | Sequence[Literal["refuse", "sum", "mean", "max"]]
        | None
    )
    self_loops: Literal["refuse", "drop"] | Sequence[Literal["refuse", "drop"]] | None
    unknown_nodes: Literal["refuse", "drop"] | Sequence[Literal["refuse", "drop"]] | None
    edges_before: str | float | date | Sequence[str | float | date] | None
    clients: int | Sequence[int] | None
    partitioner: str | Callable[..., Any] | Sequence[str | Callable[..., Any]] | None
    split: str | Callable[..., Any] | Sequence[str | Callable[..., Any]] | None
    task: (
        Literal["classes", "multi-label", "regression", "links"]
        | Sequence[Literal["classes", "multi-label", "regression", "links"]]
        | None
    )
    relation: str | Sequence[str] | None
    feature_normalisation: (
        Literal["none", "row", "l2"] | Sequence[Literal["none", "row", "l2"]] | None
    )
    structure: (
        Literal["columns", "degrees", "labels"]
        | Sequence[Literal["columns", "degrees", "labels"]]
        | None
    )
    structure_columns: int | Sequence[int] | None
    structure_steps: int | Sequence[int] | None
    structure_bits: Literal[4, 8, 32] | Sequence[Literal[4, 8, 32]] | None
    # ---- Model and training ----
    algorithm: (
        Literal["lazy", "standard", "bns", "drop", "central", "propagation"]
        | Sequence[Literal["lazy", "standard", "bns", "drop", "central", "propagation"]]
        | None
    )
    model: (
        Literal[
            "gcn",
            "sage",
            "gat",
            "gin",
            "sage-pool",
            "gine",
            "dir-gcn",
            "dir-sage",
            "dir-gat",
            "dir-gin",
            "rel-sage",
            "rel-gcn",
            "rel-gat",
        ]
        | str
        | Callable[..., Any]
        | Sequence[
            Literal[
                "gcn",
                "sage",
                "gat",
                "gin",
                "sage-pool",
                "gine",
                "dir-gcn",
                "dir-sage",
                "dir-gat",
                "dir-gin",
                "rel-sage",
                "rel-gcn",
                "rel-gat",
            ]
            | str
            | Callable[..., Any]
        ]
        | None
    )
    layers: int | Sequence[int] | None
    hidden: int | Sequence[int] | None
    heads: int | Sequence[int] | None
    num_bases: int | Sequence[int] | None
    unlabelled_types: (
        Literal["drawn", "trained", "refined"]
        | Sequence[Literal["drawn", "trained", "refined"]]
        | None
    )
    rounds: int | Sequence[int] | None
    last_rounds: int | Sequence[int] | None
    basis: Literal["none", "supervised"] | Sequence[Literal["none", "supervised"]] | None
    basis_rows: (
        Literal["own", "sums", "choose", "far"]
        | Sequence[Literal["own", "sums", "choose", "far"]]
        | None
    )
    basis_blocks: int | Sequence[int] | None
    basis_bits: Literal[32, 8, 4] | Sequence[Literal[32, 8, 4]] | None
    patience: int | Sequence[int] | None
    solver: Literal["rounds", "ridge"] | Sequence[Literal["rounds", "ridge"]] | None
    ridge_penalty: Literal["gcv", "validation"] | Sequence[Literal["gcv", "validation"]] | None
    warm_start: bool | Sequence[bool] | None
    candidates: (
        Literal["none", "own-row", "drawn-types", "few-blocks", "auto"]
        | Sequence[Literal["none", "own-row", "drawn-types", "few-blocks", "auto"]]
        | None
    )
    floor: Literal["none", "one-shot"] | Sequence[Literal["none", "one-shot"]] | None
    optimizer: (
        Literal["adam", "sgd", "momentum", "yogi", "adagrad", "lbfgs"]
        | Sequence[Literal["adam", "sgd", "momentum", "yogi", "adagrad", "lbfgs"]]
        | None
    )
    learning_rate: float | Sequence[float] | None
    dropout: float | Sequence[float] | None
    boundary_rate: float | Sequence[float] | None
    boundary_scaling: Literal["inverse", "none"] | Sequence[Literal["inverse", "none"]] | None
    activations: Literal["keep", "recompute"] | Sequence[Literal["keep", "recompute"]] | None
    local_steps: int | Sequence[int] | None
    local_optimizer: Literal["adam", "sgd"] | Sequence[Literal["adam", "sgd"]] | None
    local_learning_rate: float | Sequence[float] | None
    proximal_mu: float | Sequence[float] | None
    local_correction: Literal["none", "scaffold"] | Sequence[Literal["none", "scaffold"]] | None
    server_optimizer: (
        Literal["mean", "sgd", "momentum", "adam", "yogi", "adagrad"]
        | Sequence[Literal["mean", "sgd", "momentum", "adam", "yogi", "adagrad"]]
        | None
    )
    link_head: Literal["dot", "mlp"] | Sequence[Literal["dot", "mlp"]] | None
    negatives: int | Sequence[int] | None
    loss: str | Callable[..., Any] | Sequence[str | Callable[..., Any]] | None
    class_weights: (
        str
        | Sequence[float]
        | Mapping[str, float]
        | Sequence[str | Sequence[float] | Mapping[str, float]]
        | None
    )
    metric: str | Callable[..., Any] | Sequence[str | Callable[..., Any]] | None
    per_client_metrics: bool | Sequence[bool] | None
    weight_decay: float | Sequence[float] | None
    aggregator: str | Callable[..., Any] | Sequence[str | Callable[..., Any]] | None
    secure_aggregation: Literal["none", "masked"] | Sequence[Literal["none", "masked"]] | None
    cohort_size: int | Sequence[int] | None
    update_dp: float | Sequence[float] | None
    update_dp_delta: float | Sequence[float] | None
    update_dp_clip: float | Sequence[float] | None
    seed: int | Sequence[int] | None
    dtype: Literal["float32", "float64"] | Sequence[Literal["float32", "float64"]] | None
    threads: int | Sequence[int] | None
    # ---- Mini-batches and devices ----
    sampler: (
        Literal["none", "full", "neighbour", "shadow", "gns"]
        | Sequence[Literal["none", "full", "neighbour", "shadow", "gns"]]
        | None
    )
    fanouts: str | Sequence[int] | Sequence[str | Sequence[int]] | None
    batch_nodes: int | Sequence[int] | None
    cache_share: float | Sequence[float] | None
    cache_epochs: int | Sequence[int] | None
    gpu_cache: Literal["degree", "lru"] | Sequence[Literal["degree", "lru"]] | None
    devices: str | Sequence[str] | Sequence[str | Sequence[str]] | None
    balance: (
        Literal["dynamic", "static", "equal"]
        | Sequence[Literal["dynamic", "static", "equal"]]
        | None
    )
    # ---- Exchange ----
    boundary_plan: (
        Literal["rows", "cover", "auto"] | Sequence[Literal["rows", "cover", "auto"]] | None
    )
    second_rows: (
        Literal["full", "class", "none"] | Sequence[Literal["full", "class", "none"]] | None
    )
    row_dp: float | Sequence[float] | None
    row_bits: Literal[32, 8, 4, 2] | Sequence[Literal[32, 8, 4, 2]] | None
    update_bits: Literal[32, 8, 4, 2, 1] | Sequence[Literal[32, 8, 4, 2, 1]] | None
    weight_bits: Literal[32, 8, 4, 2, 1] | Sequence[Literal[32, 8, 4, 2, 1]] | None
    codec: (
        Literal["lossless", "dense", "fixed"]
        | Sequence[Literal["lossless", "dense", "fixed"]]
        | None
    )
    # ---- Faults and time ----
    missing_peers: Literal["wait", "drop"] | Sequence[Literal["wait", "drop"]] | None
    exchange_deadline_s: float | Sequence[float] | None
    exchange_poll_s: float | Sequence[float] | None
    message_timeout_s: float | Sequence[float] | None
    min_clients: int | Sequence[int] | None
    round_deadline_s: float | Sequence[float] | None
    checkpoint_every: int | Sequence[int] | None
    # ---- Clients that find each other ----
    introductions: bool | Sequence[bool] | None
    relay: bool | Sequence[bool] | None
    # ---- Where it runs ----
    engine: (
        Literal["inline", "flower", "deployment"]
        | Sequence[Literal["inline", "flower", "deployment"]]
        | None
    )
    links: str | Sequence[str] | None
    memory_budget: str | Sequence[str] | None
    partitions: str | Path | Sequence[str | Path] | None


def every_key(  # noqa: PLR0913
    *,
    dataset: Any = "digits",
    data_dir: Any = "",
    nodes: Any = "",
    edges: Any = "",
    features: Any = "",
    key_column: Any = "",
    label_column: Any = "",
    unlabelled_values: Any = "",
    drop_columns: Any = "",
    repeated_nodes: Any = "refuse",
    source_column: Any = "",
    target_column: Any = "",
    weight_column: Any = "",
    time_column: Any = "",
    predicates: Any = "",
    node_time_column: Any = "",
    type_column: Any = "",
    label_types: Any = "",
    delimiter: Any = "",
    decimal: Any = "",
    encoding: Any = "",
    edges_are: Any = "undirected",
    merge_edges: Any = "refuse",
    self_loops: Any = "refuse",
    unknown_nodes: Any = "refuse",
    edges_before: Any = "",
    clients: Any = 5,
    partitioner: Any = "random",
    split: Any = "auto",
    task: Any = "classes",
    relation: Any = "",
    feature_normalisation: Any = "none",
    structure: Any = "columns",
    structure_columns: Any = 64,
    structure_steps: Any = 12,
    structure_bits: Any = 4,
    algorithm: Any = "lazy",
    model: Any = "sage",
    layers: Any = 2,
    hidden: Any = 64,
    heads: Any = 8,
    num_bases: Any = 0,
    unlabelled_types: Any = "drawn",
    rounds: Any = 60,
    last_rounds: Any = 0,
    basis: Any = "none",
    basis_rows: Any = "own",
    basis_blocks: Any = 3,
    basis_bits: Any = 32,
    patience: Any = 0,
    solver: Any = "rounds",
    ridge_penalty: Any = "gcv",
    warm_start: Any = False,
    candidates: Any = "none",
    floor: Any = "none",
    optimizer: Any = "adam",
    learning_rate: Any = 0.01,
    dropout: Any = 0.3,
    boundary_rate: Any = 0.1,
    boundary_scaling: Any = "inverse",
    activations: Any = "keep",
    local_steps: Any = 1,
    local_optimizer: Any = "adam",
    local_learning_rate: Any = 0.01,
    proximal_mu: Any = 0.0,
    local_correction: Any = "none",
    server_optimizer: Any = "mean",
    link_head: Any = "dot",
    negatives: Any = 1,
    loss: Any = "auto",
    class_weights: Any = "none",
    metric: Any = "auto",
    per_client_metrics: Any = False,
    weight_decay: Any = 0.0005,
    aggregator: Any = "mean",
    secure_aggregation: Any = "none",
    cohort_size: Any = 0,
    update_dp: Any = 0.0,
    update_dp_delta: Any = 1e-05,
    update_dp_clip: Any = 1.0,
    seed: Any = 0,
    dtype: Any = "float32",
    threads: Any = 1,
    sampler: Any = "none",
    fanouts: Any = "15/10",
    batch_nodes: Any = 1024,
    cache_share: Any = 0.2,
    cache_epochs: Any = 1,
    gpu_cache: Any = "degree",
    devices: Any = "auto",
    balance: Any = "dynamic",
    boundary_plan: Any = "rows",
    second_rows: Any = "full",
    row_dp: Any = 0.0,
    row_bits: Any = 32,
    update_bits: Any = 32,
    weight_bits: Any = 32,
    codec: Any = "lossless",
    missing_peers: Any = "wait",
    exchange_deadline_s: Any = 600.0,
    exchange_poll_s: Any = 60.0,
    message_timeout_s: Any = 3600.0,
    min_clients: Any = 0,
    round_deadline_s: Any = 0.0,
    checkpoint_every: Any = 1,
    introductions: Any = False,
    relay: Any = False,
    engine: Any = "inline",
    links: Any = "ideal",
    memory_budget: Any = "auto",
    out: Any = "",
) -> None:
    """Name all keys with their defaults, for editors that read no such classes."""
