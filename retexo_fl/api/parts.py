"""Plans and parts for callers in Python."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from retexo_fl.api.settling import Asked, settled
from retexo_fl.api.spelling import words_of_python
from retexo_fl.api.values import Partitions, asked_for, takes_keys
from retexo_fl.errors import ConfigurationError
from retexo_fl.units import counted

if TYPE_CHECKING:
    from typing import Unpack

    from retexo_fl.api.options import Options, RunOptions, every_key
    from retexo_fl.graph.parts.partition import GraphPartition


@words_of_python()
@takes_keys
def plan(
    *,
    config: str | Path | None = None,
    profile: str | None = None,
    graph: object | None = None,
    partitions: Partitions | None = None,
    **keys: Unpack[RunOptions],
) -> dict[str, Any]:
    """Return what a training would move, before it is started: what `retexo plan --json` prints.

    Args:
        config: TOML file of keys, which ``keys`` override.
        profile: Set of keys that both override; by default that of a run.
        graph: As in :func:`retexo_fl.run`.
        partitions: Likewise.
        keys: Of the configuration, in snake case.

    Returns:
        Boundary sizes, bytes of each algorithm, plan and codec, memory, profiles.

    Raises:
        InputError: The configuration, or the graph that it names, cannot be used.
    """
    from retexo_fl.api.planning import planned
    from retexo_fl.api.shown import PlanFacts

    if TYPE_CHECKING:
        every_key(**keys)
    asked = asked_for(keys, config=config, profile=profile, graph=graph, partitions=partitions)
    return PlanFacts(planned(asked)[1])


@words_of_python()
@takes_keys
def partition(
    *,
    out: str | Path,
    config: str | Path | None = None,
    graph: object | None = None,
    overwrite: bool = False,
    **keys: Unpack[Options],
) -> Path:
    """Cut a graph into one folder for each client, as `retexo partition make` does.

    Args:
        out: New folder for the parts.
        config: TOML file of keys, as of a run, which ``keys`` override.
        graph: As in :func:`retexo_fl.run`.
        overwrite: Replace parts that are there, with predictions beside them; a folder that holds
            anything else is refused.
        keys: Of the configuration, in snake case: which graph, and how it is cut.

    Returns:
        The folder, for ``partitions`` of a run.

    Raises:
        InputError: The graph cannot be used, or the folder is not new.
    """
    if TYPE_CHECKING:
        every_key(**keys)
    asked = asked_for(keys, config=config, graph=graph)
    cut(asked, Path(out), overwrite=overwrite)
    return Path(out)


def cut(
    asked: Asked, out: Path, *, unlabelled: int | None = None, overwrite: bool = False
) -> list[GraphPartition]:
    """Write the parts that are asked for, and what clients make such parts by; return the parts.

    Args:
        asked: What is asked for.
        out: New folder.
        unlabelled: Outputs of the model that the parts are predicted by; None to train on them.
        overwrite: Replace parts that are there.
    """
    from retexo_fl.client.preparation import make_parts, make_unlabelled_parts
    from retexo_fl.graph.parts.storage import PARTS, check_new_folder

    if "partitions" in {**asked.in_file, **asked.values}:
        raise ConfigurationError("partitions: are cut already; expected a graph")
    check_new_folder(out, PARTS if overwrite else None)
    if unlabelled is None:
        parts = make_parts(settled(asked), graph=asked.graph)
    else:
        parts = make_unlabelled_parts(settled(asked), unlabelled)
    store(parts, out, overwrite=overwrite)
    return parts


def store(parts: list[GraphPartition], out: Path, *, overwrite: bool = False) -> None:
    """Write parts to a new folder, or over others, and what clients make such parts by."""
    from retexo_fl.graph.parts.peers import PEERS_NAME, peers_of
    from retexo_fl.graph.parts.storage import write_partitions
    from retexo_fl.graph.recipes import RECIPE_NAME
    from retexo_fl.progress.steps import Step

    beside = {PEERS_NAME: peers_of(parts).to_toml()}
    if parts[0].recipe is not None and parts[0].recipe.columns:
        beside[RECIPE_NAME] = parts[0].recipe.to_toml()
    with Step(f"writing {counted(len(parts), 'part')}"):
        write_partitions(parts, out, beside=beside, overwrite=overwrite)


@words_of_python()
def open_parts(folder: str | Path) -> list[GraphPartition]:
    """Return all parts below a folder, by client.

    Raises:
        PartitionError: A part is missing, damaged or of another partitioning.
    """
    from retexo_fl.client import preparation

    return preparation.open_parts(Path(folder))
