"""From options and a configuration file to one checked configuration."""

from __future__ import annotations

from collections.abc import Sequence, Set
from pathlib import Path
from typing import TYPE_CHECKING, Final

from retexo_fl.algorithms import check_algorithm
from retexo_fl.cli.options import Values
from retexo_fl.cli.superlink import Address
from retexo_fl.config import (
    DATA_PATH_KEYS,
    FITTED,
    RunConfig,
    config_values,
    fitted_values,
    free_keys,
    make_config,
    profile_values,
    read_config_file,
)
from retexo_fl.errors import CheckpointError, ConfigurationError, RunDirectoryError
from retexo_fl.units import counted

if TYPE_CHECKING:
    from retexo_fl.graph import GraphPartition

#: A resume takes everything from the run but these.
_MOVABLE: Final = free_keys() - {"out"}
#: Keys of a deployment only.
_OF_DEPLOYMENTS: Final = {"introductions": False, "relay": False}
#: What parts on disk were made with.
_OF_PARTS = frozenset(
    {
        *("dataset", "data-dir", "nodes", "edges", "features", "key-column", "label-column"),
        *("partitioner", "split", "edges-are", "merge-edges", "self-loops", "edges-before"),
    }
)
#: Keys with a graph's place; a deployment's clients have their own.
_WHERE_GRAPHS_LIE: Final = dict.fromkeys(DATA_PATH_KEYS, "")
#: What stands for the tables of a graph.
_OF_TABLES = frozenset({"dataset", "data-dir"})


def settled(values: Values, file: Path | None, *, profile: str | None = None) -> RunConfig:
    """Join a profile, a file and the options, the later winning; count clients not chosen.

    There are as many as parts on disk, or as values of the attribute that the graph is cut by.

    Raises:
        InputError: A key is unknown, a value not allowed, or two of them contradict each other.
    """
    from retexo_fl.client.preparation import count_attribute_clients, part_paths

    merged: dict[str, object] = read_config_file(file) if file else {}
    if merged.get("resume"):
        raise ConfigurationError(f"{file}: resume: expected on the command line only")
    merged = {**profile_values("retexo" if profile is None else profile), **merged, **values}
    if merged.get("partitions"):
        # Edges are split when they are trained on.
        later = {"split"} if merged.get("task") == "links" else frozenset()
        _refuse((_OF_PARTS - later) & values.keys(), "partitions, which are cut already")
        if "clients" not in merged:
            merged["clients"] = len(part_paths(Path(str(merged["partitions"]))))
    elif merged.get("nodes"):
        _refuse(_OF_TABLES & values.keys(), "nodes and edges, which are the graph")
    if merged.get("engine") == "deployment" and "clients" not in merged:
        raise ConfigurationError("clients: missing; expected how many the deployment has")
    config = make_config(merged)
    if "clients" not in merged and (counted := count_attribute_clients(config)) is not None:
        config = make_config({**merged, "clients": counted})
    check_algorithm(config_values(config))
    return config


def fitted(
    config: RunConfig,
    parts: Sequence[GraphPartition],
    values: Values,
    file: Path | None,
    *,
    profile: str | None,
) -> tuple[RunConfig, str]:
    """Fit what nobody chose of a profile to the graph; return that, and a sentence of what it is.

    Args:
        config: What :func:`settled` returned of the other arguments.
        parts: Of the graph.
        values: The options.
        file: The configuration file, or None.
        profile: Name of the profile, or None.

    Returns:
        The configuration, and a sentence; none where the profile is the same for all graphs.
    """
    if profile not in FITTED:
        return config, ""
    from retexo_fl.client.preparation import graph_facts
    from retexo_fl.layers.base import GraphLayer
    from retexo_fl.layers.named import layer_class

    facts, layer = graph_facts(parts), layer_class(config.model)
    takes_sums = layer.fixed_width(1) is not None
    fitted_to = fitted_values(
        profile,
        facts,
        takes_sums=takes_sums,
        is_linear=takes_sums and layer.start_as is not GraphLayer.start_as,
    )
    chosen = {**values, **(read_config_file(file) if file else {})}
    fitting = {key: value for key, value in fitted_to.items() if key not in chosen}
    keys = ", ".join(f"{key} {value}" for key, value in fitting.items()) or "as it is"
    told = (
        f"profile {profile}: {keys} ({counted(facts.train_nodes, 'train node')}, "
        f"{counted(facts.features, 'feature')} with {facts.entries_per_row:.3g} entries in a row, "
        f"mean degree {facts.degree:.3g})"
    )
    return make_config({**config_values(config), **fitting}), told


def deployment_address(
    superlink: str | None, root_certificates: Path | None, *, insecure: bool
) -> Address | None:
    """Return where the SuperLink of a deployment is; None where none is named.

    Raises:
        ConfigurationError: What belongs to a SuperLink is given without one, or contradicts.
    """
    if superlink is None:
        if root_certificates is not None or insecure:
            name = "insecure" if insecure else "root-certificates"
            raise ConfigurationError(f"{name}: expected only with --superlink HOST:PORT")
        return None
    if insecure and root_certificates is not None:
        raise ConfigurationError(
            "insecure: cannot be given with root-certificates; expected one of the two"
        )
    return Address(superlink=superlink, root_certificates=root_certificates, insecure=insecure)


def deployed_values(values: Values) -> Values:
    """Return options that choose the engine of a SuperLink's clients.

    Raises:
        ConfigurationError: They choose another one.
    """
    if values.get("engine", "deployment") != "deployment":
        raise ConfigurationError(
            f"engine: {values['engine']!r} does not go with --superlink; expected deployment"
        )
    return {**values, "engine": "deployment"}


def _refuse(contradicting: Set[str], others: str) -> None:
    if contradicting:
        raise ConfigurationError(
            f"{min(contradicting)}: cannot be given with {others}; expected one of the two"
        )


def resumed(values: Values, file: Path | None, *, profile: str | None = None) -> RunConfig:
    """Return the configuration of the run to resume, moved where the options say.

    Raises:
        InputError: There is no run to resume, or an option would train something else.
    """
    from retexo_fl.federation.checkpoints import named_damage, read_checkpoint
    from retexo_fl.federation.resume_checks import check_unchanged
    from retexo_fl.federation.run_directory import check_resumable

    run_path = Path(str(values["resume"])).absolute()
    stored = check_resumable(run_path)
    named = [name for name, given in (("config", file), ("profile", profile)) if given is not None]
    fixed = named or sorted(values.keys() - _MOVABLE)
    if fixed:
        raise ConfigurationError(
            f"{fixed[0]}: cannot be given with --resume, which takes the run's own configuration"
        )
    try:
        checkpoint = read_checkpoint(run_path / "checkpoint.safetensors")
        with named_damage(run_path / "checkpoint.safetensors"):
            check_unchanged(run_path, stored, checkpoint)
    except CheckpointError as error:
        raise RunDirectoryError(f"resume: {error}") from error
    moved = config_values(stored)
    if "engine" in values:
        moved |= _WHERE_GRAPHS_LIE if values["engine"] == "deployment" else _OF_DEPLOYMENTS
    config = make_config({**moved, **values})
    check_algorithm(config_values(config))
    return config
