"""What other libraries call a key: the names that a user tries first."""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

#: By key, its other names in snake case: of PyTorch, PyG, scikit-learn, Flower and papers.
_NAMES: Final = {
    "rounds": "epochs num_epochs n_epochs max_epochs epoch num_rounds n_rounds global_rounds "
    "server_rounds communication_rounds comm_rounds iterations num_iterations max_iter n_iter "
    "steps num_steps max_steps",
    "learning-rate": "lr eta alpha step_size server_lr server_learning_rate global_lr initial_lr",
    "hidden": "hidden_channels hidden_dim hidden_size hidden_units hidden_features hidden_layers "
    "hid hid_dim hid_channels nhid n_hidden num_hidden dim width embedding_dim emb_dim channels "
    "out_channels",
    "clients": "num_clients n_clients client_count parties num_parties workers num_workers "
    "num_partitions n_parts num_parts num_supernodes supernodes nodes_per_fit",
    "layers": "num_layers n_layers nlayers layer_count depth num_conv_layers gnn_layers",
    "weight-decay": "wd decay l2 l2_reg l2_penalty weight_penalty regularization reg_lambda",
    "batch-nodes": "batch_size bs batch minibatch_size mini_batch_size train_batch_size",
    "local-steps": "local_epochs num_local_epochs client_epochs local_rounds local_iterations "
    "local_updates epochs_per_round",
    "local-learning-rate": "local_lr client_lr client_learning_rate",
    "local-optimizer": "local_optim client_optimizer client_optim",
    "devices": "device accelerator gpu gpus cuda use_cuda use_gpu num_gpus",
    "seed": "random_state random_seed rng manual_seed rng_seed",
    "dropout": "dropout_rate drop_rate p_dropout dropout_p drop_prob dropout_prob feat_drop",
    "heads": "num_heads n_heads nheads attention_heads attn_heads nhead",
    "patience": "early_stopping early_stop early_stopping_rounds early_stopping_patience "
    "n_iter_no_change tolerance",
    "model": "conv conv_layer layer layer_type gnn gnn_type architecture arch net network "
    "model_name model_type backbone encoder",
    "dataset": "data data_set dataset_name data_name graph_name",
    "data-dir": "root data_root data_path data_folder dataset_dir data_directory",
    "algorithm": "method strategy federated_algorithm fl_algorithm trainer",
    "optimizer": "optim opt optimiser optimizer_name",
    "server-optimizer": "server_optim server_opt global_optimizer",
    "aggregator": "aggregation aggr agg aggregate aggregation_method fedavg",
    "loss": "criterion loss_fn loss_function objective loss_name",
    "metric": "metrics scoring score eval_metric monitor evaluation_metric",
    "class-weights": "class_weight weights pos_weight sample_weight balanced",
    "sampler": "sampling loader neighbor_sampler data_loader",
    "fanouts": "fanout num_neighbors num_neighbours neighbors n_neighbors fan_out sizes "
    "neighbor_sizes",
    "out": "output output_dir out_dir log_dir logdir save_dir save_path run_dir results_dir outdir "
    "save_to checkpoint_dir",
    "resume": "checkpoint resume_from resume_from_checkpoint restart ckpt ckpt_path load_from",
    "checkpoint-every": "checkpoint_interval save_every save_interval",
    "threads": "num_threads n_threads torch_threads n_jobs",
    "dtype": "precision float_type data_type",
    "task": "task_type problem problem_type mode",
    "split": "splits train_ratio train_size test_size train_split val_ratio test_ratio "
    "train_val_test masks",
    "partitioner": "partition partition_method partitioning partition_by splitter partition_fn",
    "partitions": "parts parts_dir partition_dir",
    "edges-are": "directed undirected is_directed is_undirected",
    "merge-edges": "coalesce duplicates duplicate_edges multi_edges",
    "self-loops": "add_self_loops remove_self_loops loops",
    "edges-before": "before cutoff cutoff_time until time_cutoff",
    "feature-normalisation": "normalize normalise normalize_features normalise_features "
    "feature_normalization normalization normalisation scaler scaling row_normalize",
    "label-column": "label labels target targets y y_column label_col label_columns label_name",
    "drop-columns": "drop drop_cols exclude exclude_columns ignore_columns",
    "key-column": "id id_column key index_col node_id node_id_column id_col key_col",
    "nodes": "node_file nodes_file node_table node_csv nodes_csv node_path nodes_path",
    "edges": "edge_file edges_file edge_table edge_csv edges_csv edge_list edge_index edge_path",
    "features": "recipe feature_recipe feature_file",
    "secure-aggregation": "secagg secure_agg masking masked secaggplus encryption encrypted",
    "min-clients": "min_fit_clients min_available_clients min_num_clients quorum "
    "min_evaluate_clients",
    "round-deadline-s": "round_timeout deadline round_deadline timeout_per_round",
    "message-timeout-s": "timeout message_timeout grpc_timeout round_timeout_s",
    "engine": "backend runtime simulation",
    "links": "bandwidth latency network_profile link",
    "memory-budget": "memory max_memory memory_limit ram",
    "boundary-rate": "sampling_rate sample_rate boundary_sampling_rate bns_rate",
    "proximal-mu": "mu prox_mu fedprox_mu proximal_term fedprox",
    "local-correction": "scaffold correction control_variates",
    "negatives": "num_negatives neg_ratio num_neg_samples neg_sampling_ratio negative_samples",
    "link-head": "decoder predictor link_predictor head",
    "codec": "compression compress",
    "row-bits": "quantization quantize bits activation_bits",
    "update-bits": "gradient_bits gradient_compression quantize_updates",
    "weight-bits": "quantize_weights",
    "balance": "load_balance balancing",
}

#: By name in snake case, the key that it means.
SYNONYMS: Final = MappingProxyType(
    {name: key for key, names in _NAMES.items() for name in names.split()}
)
