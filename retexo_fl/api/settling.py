"""From what a user asks for to one checked configuration, for the command line and for Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self, TypeAlias

from retexo_fl.config import (
    DATA_PATH_KEYS,
    NO_FEATURES,
    RunConfig,
    Scalar,
    config_values,
    free_keys,
    make_config,
    named_plugins,
)
from retexo_fl.config.checks import OF_TABLES
from retexo_fl.config.file import read_config_file
from retexo_fl.config.goals import goal_of
from retexo_fl.config.profiles import Fitting, default_profile, leaving, profile_values
from retexo_fl.errors import CheckpointError, ConfigurationError, RunDirectoryError
from retexo_fl.masking import MASKED
from retexo_fl.methods.keys import check_algorithm

if TYPE_CHECKING:
    from retexo_fl.api.plan_exchanges import PlannedParts
    from retexo_fl.client.preparation import SettledParts
    from retexo_fl.graph.parts.partition import GraphPartition

#: Configuration keys that a user gave.
Values: TypeAlias = Mapping[str, Scalar]

#: A resume takes everything from the run but these.
_MOVABLE: Final = free_keys() - {"out", "last-rounds"}
#: Keys of a deployment only.
_OF_DEPLOYMENTS: Final = {"introductions": False, "relay": False}
#: What parts were made with, which they take the place of.
OF_PARTS: Final = frozenset(
    {
        *("dataset", "data-dir", "nodes", "edges", *OF_TABLES),
        *("partitioner", "split", "edges-are", "merge-edges", "self-loops", "edges-before"),
        *("unknown-nodes", "label-column", "drop-columns"),
    }
)
#: Keys with a graph's place; a deployment's clients have their own.
_WHERE_GRAPHS_LIE: Final = dict.fromkeys(DATA_PATH_KEYS, "")
#: Keys that name a graph in place of tables.
_OF_TABLES = frozenset({"dataset", "data-dir"})
#: What is recorded in the place of a table's path.
_IN_MEMORY: Final = "DataFrame"
#: Keys that say where a graph is: refused beside one that is handed over.
_PLACES: Final = frozenset({"nodes", "edges", "features", "partitions"})


def keys_of_parts(values: Mapping[str, object]) -> frozenset[str]:
    """Return which keys parts take the place of; edges are split when they are trained on."""
    return OF_PARTS if goal_of(values).splits_nodes else OF_PARTS - {"split"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a user asks for.

    Attributes:
        values: Keys, which win over those of the file.
        file: TOML file of keys.
        profile: Name of a set of keys that both override; None for ``retexo``.
        left: Keys whose values leave the default profile, where none is named.
        graph: What takes the place of a named graph, as :func:`.as_graph` has it.
        parts: What takes the place of a folder of parts.
        extend: Rounds by which a finished run's last stage is trained on; 0 for none.
        overwrite: A run that is in the run's directory is replaced, once the new one has begun.
        allow_plugins: What the configuration of a run to resume names may be imported.
    """

    values: Values = field(default_factory=dict)
    file: Path | None = None
    profile: str | None = None
    left: tuple[str, ...] | None = None
    graph: object | None = None
    parts: Sequence[GraphPartition] | None = None
    extend: int = 0
    overwrite: bool = False
    allow_plugins: bool = False

    def of_run(self) -> Self:
        """Return it with a profile: where none is named the default, if all keys go with it."""
        if self.profile is not None or "resume" in self.values:
            return self
        chosen = {**self.in_file, **self.values}
        return replace(self, profile=default_profile(chosen), left=leaving(chosen))

    @property
    def in_file(self) -> Mapping[str, object]:
        """Keys of the file."""
        return read_config_file(self.file) if self.file else {}

    @property
    def fitting(self) -> Fitting:
        """What is left to be fitted to the graph."""
        chosen = {**self.in_file, **self.values}
        return Fitting(profile=self.profile or "", chosen=tuple(sorted(chosen)))

    def load(self, config: RunConfig, *, quiet: bool = False) -> SettledParts:
        """Return all parts, and by which split.

        ``quiet`` shows no progress of a download.
        """
        from retexo_fl.client.preparation import check_parts, load_settled

        if self.parts is None:
            return load_settled(config, graph=self.graph, quiet=quiet)
        return check_parts(config, list(self.parts))


def settled(asked: Asked) -> RunConfig:
    """Join a profile, a file and keys, the later winning; count clients not chosen.

    There are as many as parts, or as values of the attribute that the graph is cut by.

    Raises:
        InputError: A key is unknown, a value not allowed, or two of them contradict each other.
    """
    from retexo_fl.client.preparation import count_attribute_clients, part_paths

    values, merged = asked.values, dict(asked.in_file)
    if merged.get("resume"):
        raise ConfigurationError(f"{asked.file}: resume: expected on the command line only")
    profile = "retexo" if asked.profile is None else asked.profile
    merged = {**merged, **values}
    merged = {**profile_values(profile, merged), **merged}
    of_parts = keys_of_parts(merged)
    if asked.parts is not None:
        _refuse((of_parts | _PLACES) & values.keys(), "parts, which are cut already")
        merged = {"clients": len(asked.parts), **merged, "dataset": "parts"}
    elif asked.graph is not None:
        merged |= _names_of(asked.graph, values)
    elif merged.get("partitions"):
        _refuse(of_parts & values.keys(), "partitions, which are cut already")
        if "clients" not in merged:
            merged["clients"] = len(part_paths(Path(str(merged["partitions"]))))
    elif merged.get("nodes"):
        _refuse(_OF_TABLES & values.keys(), "nodes and edges, which are the graph")
    else:
        merged |= _located(merged)
    if merged.get("engine") == "deployment" and "clients" not in merged:
        raise ConfigurationError("clients: missing; expected how many the deployment has")
    config = make_config(merged)
    if "clients" not in merged:
        counted = count_attribute_clients(config, graph=asked.graph)
        if counted is not None:
            config = make_config({**merged, "clients": counted})
    check_algorithm(config_values(config))
    return config


def _located(merged: Mapping[str, object]) -> dict[str, str]:
    """Return name and folder of a data set that is given by its path: a run records them apart."""
    from retexo_fl.graph.sources.datasets import located

    given, folder = merged.get("dataset"), merged.get("data-dir")
    if not isinstance(given, str):
        return {}
    name, found = located(given, Path(str(folder)) if folder else None)
    return {} if name == given else {"dataset": name, "data-dir": str(found)}


def masked_if_possible(
    config: RunConfig, chosen: Mapping[str, object], *, seen: str = "updates"
) -> tuple[RunConfig, str]:
    """Mask sums in a deployment where the user has not chosen, and it can be done.

    Args:
        config: Of these keys, and defaults.
        chosen: Keys that the user chose.
        seen: What the server sees of each client otherwise.

    Returns:
        The configuration, and a sentence that says which it is, and why where it is not.
    """
    if "secure-aggregation" in chosen:
        return config, ""
    try:
        masked = make_config({**config_values(config), "secure-aggregation": "masked"})
    except ConfigurationError as error:
        reason = str(error).removeprefix("secure-aggregation: ")
        return config, (f"secure-aggregation none: the server sees each client's {seen} ({reason})")
    return masked, MASKED


def _names_of(graph: object, values: Values) -> dict[str, str]:
    """Return what is recorded of a graph that was handed over, in the place of where one lies."""
    from retexo_fl.graph.sources.tables import tables_of

    tables = tables_of(graph)
    of_tables = frozenset() if tables is None else frozenset({"features"})
    if values.get("features") == NO_FEATURES:
        of_tables |= {"features"}
    _refuse(((_OF_TABLES | _PLACES) - of_tables) & values.keys(), "graph")
    if tables is None:
        return {"dataset": _name_of(graph)}
    nodes, edges = (str(one) if isinstance(one, Path) else _IN_MEMORY for one in tables)
    return {"nodes": nodes, "edges": edges}


def _name_of(graph: object) -> str:
    """Return what a run calls a graph that was handed over."""
    name = getattr(graph, "name", "")
    return name if isinstance(name, str) and name else "graph"


def fitted(config: RunConfig, planned: PlannedParts, asked: Asked) -> tuple[RunConfig, str]:
    """Fit what nobody chose to the graph; return that, and what was fitted to what.

    Args:
        config: What :func:`settled` returned.
        planned: All parts of the graph.
        asked: What the user asked for.

    Returns:
        The configuration, and words; none where the profile is the same for all graphs.
    """
    from retexo_fl.api.plan_exchanges import PlannedCounts
    from retexo_fl.training.fitting import fit, is_left

    if not is_left(config, asked.fitting):
        return config, ""
    return fit(config, asked.fitting, PlannedCounts(config, planned))


def _refuse(contradicting: Set[str], others: str) -> None:
    if contradicting:
        raise ConfigurationError(
            f"{min(contradicting)}: cannot be given with {others}; expected one of the two"
        )


def resumed(asked: Asked) -> RunConfig:
    """Return the configuration of the run to resume or extend, moved where the keys say.

    Raises:
        InputError: There is no such run, an option would train something else, or it names plug-ins
            that its user does not allow.
    """
    from retexo_fl.federation.checkpoints import named_damage, read_checkpoint
    from retexo_fl.federation.resume_checks import check_no_plugins, check_unchanged
    from retexo_fl.federation.run_directory import check_resumable

    values = asked.values
    if asked.overwrite:
        raise ConfigurationError(
            "overwrite: cannot be given with --resume, which continues the existing run"
        )
    run_path = Path(str(values["resume"])).absolute()
    stored = check_resumable(run_path, extends=asked.extend > 0)
    others = (("config", asked.file), ("profile", asked.profile))
    named = [name for name, given in others if given is not None]
    fixed = named or sorted(values.keys() - _MOVABLE)
    if fixed:
        raise ConfigurationError(
            f"{fixed[0]}: cannot be given with --resume, which takes the run's own configuration"
        )
    try:
        checkpoint = read_checkpoint(run_path / "checkpoint.safetensors")
        with named_damage(run_path / "checkpoint.safetensors"):
            check_unchanged(run_path, stored, checkpoint)
            # As what it was trained last, where a stage has candidates.
            done = int(checkpoint.facts["round"]) - int(checkpoint.facts.get("begun", 0))
    except CheckpointError as error:
        raise RunDirectoryError(f"resume: {error}") from error
    moved = config_values(stored)
    if not asked.allow_plugins:
        check_no_plugins(named_plugins(moved), run_path)
    if asked.extend:
        moved["last-rounds"] = done + asked.extend
    if "engine" in values:
        moved |= _WHERE_GRAPHS_LIE if values["engine"] == "deployment" else _OF_DEPLOYMENTS
    config = make_config({**moved, **values})
    check_algorithm(config_values(config))
    return config
