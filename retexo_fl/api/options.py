"""The keys of a run as editors and type checkers know them: completed, with their values.

Made from :class:`~retexo_fl.config.RunConfig` by ``python -m tests.support.options``; a test
compares the two.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import date
from pathlib import Path
from typing import Any, Literal, TypedDict


class Options(TypedDict, total=False):
    """Keys of all calls."""

    # ---- Graph ----
    dataset: str | Callable[..., Any] | None
    """Data set: 'digits' (built in), 'synthetic[:...]', NAME for --data-dir/NAME.npz or a
    public one (`retexo datasets`), the path of a folder or .npz file as OGB, MUSAE and others
    lay them out, or module:attribute of a function that returns a graph.
    """
    data_dir: str | Path | None
    """Folder that holds the .npz data sets."""
    nodes: str | Path | Sequence[str | Path] | None
    """Table of all nodes (.csv, .parquet, .npz, .txt), or again for each type; replaces
    --dataset.
    """
    edges: str | Path | Sequence[str | Path] | None
    """Table of all edges (.csv, .parquet, .npz, .txt, .nt), or again for each relation; needs
    --nodes.
    """
    features: str | Path | None
    """Feature recipe for the columns of --nodes (`retexo features fit`), 'auto' to make one, or
    'none' to read any graph without features.
    """
    key_column: str | None
    """Column of keys in --nodes, if not 'key'."""
    label_column: str | None
    """Column of labels in --nodes, if not 'label'."""
    unlabelled_values: str | None
    """Words in the column of labels that stand for an unlabelled node, beside nothing."""
    repeated_nodes: Literal["refuse", "first", "last"] | None
    """Rows of --nodes with the key of another row: refused, or the first or last is taken."""
    source_column: str | None
    """Column of sources in --edges, if not 'source'."""
    target_column: str | None
    """Column of targets in --edges, if not 'target'."""
    weight_column: str | None
    """Column of weights in --edges, if not 'weight'."""
    time_column: str | None
    """Column of times in --edges, if not 'time'."""
    predicates: str | None
    """What rows of --edges say (column predicate, or N-Triples) that are edges; all if not
    given.
    """
    node_time_column: str | None
    """Column of times in --nodes, for --split time:VAL/TEST, if not 'time'."""
    type_column: str | None
    """Column (attribute, or for arrays any name) that says of nodes their type and of edges
    their relation; models rel-* read 'type' if it is not given.
    """
    label_types: str | None
    """Types of nodes whose labels are learned, of a graph with labels on several; all if not
    given.
    """
    delimiter: str | None
    """What stands between fields of CSV tables: comma, semicolon, tab or pipe; found if not
    given.
    """
    decimal: str | None
    """Decimal mark of CSV tables: point or comma; found if not given."""
    encoding: str | None
    """Encoding of CSV tables, such as windows-1252; found if not given."""
    edges_are: Literal["undirected", "directed"] | None
    """Whether edges have a direction, from source to target; for models dir-*."""
    merge_edges: Literal["refuse", "sum", "mean", "max"] | None
    """An edge that is there several times: refused, or one edge with the sum, mean or maximum
    of the weights (1 without any) and of each attribute.
    """
    self_loops: Literal["refuse", "drop"] | None
    """An edge from a node to itself: refused, or left out."""
    unknown_nodes: Literal["refuse", "drop"] | None
    """An edge to a node that is not there: refused, or left out."""
    edges_before: str | float | date | None
    """Leave out edges of this time and later: a number, or a date as 2024-03-01; needs a column
    time. Three, as 2024-03-01/2024-04-01/2024-05-01: train nodes are read with the edges before
    the first, validation nodes with those before the second, test nodes the third.
    """
    clients: int | None
    """Number of clients."""
    partitioner: str | Callable[..., Any] | None
    """How nodes are assigned to clients."""
    split: str | Callable[..., Any] | None
    """Train, validation and test nodes; published: the graph's own masks, and auto, where it
    brings some, else random:0.2/0.1/0.7. Of links, the edges; auto: random:0.85/0.05/0.1.
    """
    task: Literal["classes", "multi-label", "regression", "links"] | None
    """What labels are: one class a node, several labels a node, or numbers; or links: which
    nodes have an edge, without labels.
    """
    relation: str | None
    """Relation of a graph with types whose edges task links learns: its name, or
    SOURCE/NAME/TARGET where several have it; the only one if not given.
    """
    feature_normalisation: Literal["none", "row", "l2"] | None
    """Scaling of the input features."""
    structure: Literal["columns", "degrees", "labels"] | None
    """What stands for features where nodes have none: columns that clients make of the edges
    together, beside degrees (columns); degrees alone; or, beside them, which train labels are
    near (labels), for which peers are sent the labels of train nodes next to theirs.
    """
    structure_columns: int | None
    """How many such columns there are."""
    structure_steps: int | None
    """Steps along edges by which they are made; all but the first exchange vectors of so many
    values.
    """
    structure_bits: Literal[4, 8, 32] | None
    """Bits of a value in these vectors, rounded at random, but 8 in the last three; 32 leaves
    them as they are.
    """
    # ---- Model and training ----
    algorithm: Literal["lazy", "standard", "bns", "drop", "central", "propagation"] | None
    """Layer by layer (lazy), or end to end: standard, bns (sampled boundary nodes), drop (edges
    between clients ignored), central (one client); or propagation of labels, without training.
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
    """GNN layer; dir-* for directed edges, rel-* for types of nodes and edges, gine for edges
    with attributes; or pyg:NAME, one of PyG's convolutions (pyg:GATv2Conv).
    """
    layers: int | None
    """Number of GNN layers (stages of the training)."""
    hidden: int | None
    """Width of the hidden layers."""
    heads: int | None
    """Attention heads of GAT; each is hidden/heads wide."""
    num_bases: int | None
    """Matrices that the relations of rel-gcn are sums of, where types have rows of one width;
    0: each relation has its own.
    """
    unlabelled_types: Literal["drawn", "trained"] | None
    """Weights of types of nodes without labels, layer by layer: as drawn, or trained by the
    labels of nodes that their rows go to (rel-sage, rel-gcn; labels on one type). What a layer
    reads then crosses before it is trained, in place of what it makes.
    """
    rounds: int | None
    """Rounds per layer, or of the whole model."""
    last_rounds: int | None
    """Rounds of the last layer, or of the whole model, whatever patience; 0: as rounds says."""
    basis: Literal["none", "supervised"] | None
    """Whether features become coordinates in a subspace that the train labels choose."""
    basis_rows: Literal["own", "sums", "choose"] | None
    """Of which rows: each node's own, so that features never leave a client, or the sums over
    neighbours that the first layer makes, so that they cross once; choose: those of both that
    explain the labels of validation nodes better.
    """
    basis_blocks: int | None
    """Blocks of that subspace, each with a coordinate for each class; 1 with solver ridge only."""
    basis_bits: Literal[32, 8, 4] | None
    """Bits of a value of that subspace, and of the sums for it; 32 leaves them as they are."""
    patience: int | None
    """Rounds without a better model after which a stage ends; 0 for no early stop."""
    solver: Literal["rounds", "ridge"] | None
    """How layers are found: trained in rounds, or by ridge regression of the last one on sums
    over neighbours, which clients add up once; rounds, optimizer and dropout then do nothing
    (for gcn and sage).
    """
    ridge_penalty: Literal["gcv", "validation"] | None
    """How the penalty of ridge regression is chosen: by generalised cross-validation of the
    train nodes (gcv), or by the squared error on validation nodes.
    """
    warm_start: bool | None
    """A stage's classifier starts as the head of the stage before."""
    candidates: Literal["none", "own-row", "drawn-types", "few-blocks", "auto"] | None
    """What else a lazy stage is trained as where that may pay, of which the best on validation
    nodes is kept: the last layer without nodes' own rows (own-row), or without rows either that
    taught weights make of types without labels (drawn-types); the first of sage with three
    blocks of a basis that is the whole space (few-blocks); or all (auto). With one local step.
    """
    floor: Literal["none", "one-shot"] | None
    """With what the model of two layers of gcn or sage is compared once it is trained: nothing,
    or a ridge regression (solver ridge) on the first three blocks of a basis, of rows that
    crossed anyway (one-shot); the better on validation nodes is kept. For classes, where the
    last layer's peers are sent its layer's input (row-bits below 32, boundary-plan rows).
    """
    optimizer: Literal["adam", "sgd", "momentum", "yogi", "adagrad", "lbfgs"] | None
    """What the server does with mean gradients (with one local step)."""
    learning_rate: float | None
    """Step size of optimizer, or of server-optimizer."""
    dropout: float | None
    """Share of a layer's input values dropped."""
    boundary_rate: float | None
    """Share of its boundary nodes that a client of bns samples in a round."""
    boundary_scaling: Literal["inverse", "none"] | None
    """Whether bns divides sampled vectors by their share."""
    activations: Literal["keep", "recompute"] | None
    """Activations between the passes of an end-to-end round: keep, or recompute to save memory."""
    local_steps: int | None
    """Steps a client takes in a round; more than 1 is federated averaging of the layer."""
    local_optimizer: Literal["adam", "sgd"] | None
    """Optimizer of local steps, if more than 1."""
    local_learning_rate: float | None
    """Step size of the local optimizer."""
    proximal_mu: float | None
    """Pull of local steps towards the weights that they start from (FedProx); 0 for none."""
    local_correction: Literal["none", "scaffold"] | None
    """Whether local steps are corrected by how a client's gradients differ from all clients'
    (SCAFFOLD), which the server sends beside the weights.
    """
    server_optimizer: Literal["mean", "sgd", "momentum", "adam", "yogi", "adagrad"] | None
    """What the server does with changes after several local steps: add their mean, or step
    along it by learning-rate.
    """
    link_head: Literal["dot", "mlp"] | None
    """How task links scores two nodes: by the dot product of their embeddings, or by a layer of
    its own on their products (mlp).
    """
    negatives: int | None
    """Pairs of nodes without an edge that task links draws for each train edge in each round."""
    loss: str | Callable[..., Any] | None
    """Loss, a sum over nodes; auto: cross-entropy, of a regression squared."""
    class_weights: str | Sequence[float] | None
    """Weights of train nodes in the loss by class: none, as many nodes over those of the class
    (balanced), or a number for each.
    """
    metric: str | Callable[..., Any] | None
    """Metric by which the best weights are selected on the validation nodes, and that is
    reported; auto: accuracy, of several labels and of links roc-auc, of a regression rmse.
    """
    per_client_metrics: bool | None
    """Each client sends its own figure of the test, and the report shows their spread."""
    weight_decay: float | None
    """Coupled L2 penalty."""
    aggregator: str | Callable[..., Any] | None
    """How updates are combined."""
    secure_aggregation: Literal["none", "masked"] | None
    """Whether the server gets each client's sums, or only all clients' together: under masks
    that cancel (masked; at least 3 clients with train nodes; no help against a malicious
    server).
    """
    cohort_size: int | None
    """Clients that are added up together under masks, all of them or none, in a simulation and
    a plan; 0 for about five. In a deployment owners agree on that.
    """
    update_dp: float | None
    """Epsilon of differential privacy for each train node's own loss: its gradient, or with
    solver ridge its products, are clipped, and clients add noise under masks, for all rounds or
    sums of the run together; 0 for none.
    """
    update_dp_delta: float | None
    """Delta that goes with update-dp: far below one in the number of train nodes."""
    update_dp_clip: float | None
    """Longest gradient of one train node under update-dp; a longer one is made shorter. With
    solver ridge the length of what each adds.
    """
    seed: int | None
    """Seed of every random choice, but of noise."""
    dtype: Literal["float32", "float64"] | None
    """Arithmetic and vectors."""
    threads: int | None
    """CPU threads per client; other values change bits."""
    # ---- Mini-batches and devices ----
    sampler: Literal["none", "full", "neighbour", "shadow", "gns"] | None
    """Mini-batches of drop and central: with all neighbours (full), a sample of them
    (neighbour), the subgraph around each node (shadow), or mostly cached ones (gns).
    """
    fanouts: str | Sequence[int] | None
    """Neighbours sampled per node, from the last layer to the first."""
    batch_nodes: int | None
    """Train nodes of a mini-batch."""
    cache_share: float | None
    """Share of its nodes that gns caches."""
    cache_epochs: int | None
    """Epochs between two samplings of the gns cache."""
    gpu_cache: Literal["degree", "lru"] | None
    """Feature rows that a GPU caches: those of largest degree, or the last used; not for gns."""
    devices: str | Sequence[str] | None
    """Devices of a client; GPUs that it does not have are left out. With auto its own process,
    and others for a long lazy stage where its first rounds say that they pay.
    """
    balance: Literal["dynamic", "static", "equal"] | None
    """Shares of a client's devices: by measured speed (dynamic), by that of the first epoch
    (static), or equal (equal).
    """
    # ---- Exchange ----
    boundary_plan: Literal["rows", "cover", "auto"] | None
    """Vectors that clients send: each boundary row once (rows), the fewest rows and sums of
    rows (cover; for gcn, sage and gin), or whichever takes fewer bytes on the graph (auto).
    """
    second_rows: Literal["full", "class", "none"] | None
    """Rows after the first exchange: those that owners compute (full), or none: a client makes
    them of its neighbours' first rows and the edges across, and peers learn nothing more of
    links inside a part; class: as none, corrected by the class that owners predict of each.
    """
    row_dp: float | None
    """Experimental: epsilon of differential privacy for each node's features, of which peers
    get a noised class in place of its first row; 0 sends rows.
    """
    row_bits: Literal[32, 8, 4, 2] | None
    """Bits of a value in vectors, rounded at random; 32 leaves them as they are."""
    update_bits: Literal[32, 8, 4, 2, 1] | None
    """Bits of a value in updates, rounded at random; 32 leaves them as they are."""
    weight_bits: Literal[32, 8, 4, 2, 1] | None
    """Bits of a value in weights, sent as changes; 32 sends all weights as they are."""
    codec: Literal["lossless", "dense", "fixed"] | None
    """Encoding of vectors: the shortest without loss (lossless), every value as it is (dense),
    or rounded to 24 bits, with row-bits 8 to 8, so that sums are exact (fixed). Updates go
    without their zeros, but with dense.
    """
    # ---- Faults and time ----
    missing_peers: Literal["wait", "drop"] | None
    """If vectors are missing at the exchange deadline: fail (wait), or continue without (drop)."""
    exchange_deadline_s: float | None
    """Deadline of an exchange, in seconds."""
    exchange_poll_s: float | None
    """Longest interval between two polls of a deployed exchange, in seconds."""
    message_timeout_s: float | None
    """Seconds a client may take to answer a message."""
    min_clients: int | None
    """Quorum: answers that are enough to close a round at round-deadline-s; 0 for all."""
    round_deadline_s: float | None
    """Deadline after which min-clients answers close a round, in seconds; 0 for none."""
    checkpoint_every: int | None
    """Rounds between checkpoints, of which at most two a second are written."""
    # ---- Clients that find each other ----
    introductions: bool | None
    """The server hands all clients' certificates and addresses to clients without a roster."""
    relay: bool | None
    """The server relays encrypted blocks between clients that cannot reach each other."""
    # ---- Where it runs ----
    engine: Literal["inline", "flower", "deployment"] | None
    """In this process (inline), in Flower's simulation (flower), or on the clients' machines
    (deployment).
    """
    links: str | None
    """Network that the inline engine models, in virtual time."""
    memory_budget: str | None
    """Memory that this process may take: all there is (auto), or a size. Rows that do not fit
    are kept on disk in the run directory (inline engine, lazy gcn, sage and gin).
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
    unlabelled_types: Literal["drawn", "trained"] | Sequence[Literal["drawn", "trained"]] | None
    rounds: int | Sequence[int] | None
    last_rounds: int | Sequence[int] | None
    basis: Literal["none", "supervised"] | Sequence[Literal["none", "supervised"]] | None
    basis_rows: Literal["own", "sums", "choose"] | Sequence[Literal["own", "sums", "choose"]] | None
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
    class_weights: str | Sequence[float] | Sequence[str | Sequence[float]] | None
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
