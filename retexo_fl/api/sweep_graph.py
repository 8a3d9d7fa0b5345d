"""The graph of a sweep that was handed over: what its processes read of it.

It is cut here, as each run asks for, and stored as parts in the sweep's folder, once for all runs
with the same parts. Their folder is named by what they hold, and so are the runs: called again with
another graph, a sweep finds none of the runs that it had.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from retexo_fl.api.settling import OF_PARTS, Asked, keys_of_parts, settled
from retexo_fl.config import Scalar, config_values
from retexo_fl.errors import ConfigurationError, InputError

#: Folder of the parts.
FOLDER: Final = "parts"
_PARTITIONS: Final = "partitions"
#: What names another graph.
_OTHERS: Final = ("dataset", "data-dir", "nodes", "edges", _PARTITIONS)
#: What decides over parts beside the keys that they take the place of.
_DECIDING: Final = ("clients", "seed", "task")
_DIGITS: Final = 16


class SweepGraph:
    """A graph that was handed over.

    Args:
        graph: What :func:`retexo_fl.run` takes as ``graph``.
        quiet: Show no progress.

    Attributes:
        given: The graph.
    """

    def __init__(self, graph: object, *, quiet: bool) -> None:
        self.given = graph
        self._quiet = quiet

    def readings(
        self, runs: Sequence[Mapping[str, Scalar]], out: Path
    ) -> list[dict[str, Scalar] | InputError]:
        """Return the keys of each run as its process gets them; store the parts that these name.

        Args:
            runs: Keys of each run, and ``profile``.
            out: Folder of the sweep.

        Returns:
            In the place of a run for which the graph cannot be cut, why.

        Raises:
            InputError: It can be cut for none of them, or they name another graph.
        """
        for keys in runs:
            if found := [key for key in _OTHERS if key in keys]:
                raise ConfigurationError(
                    f"{found[0]}: cannot be given with graph; expected one of the two"
                )
        folders: dict[tuple[object, ...], Path] = {}
        read: list[dict[str, Scalar] | InputError] = []
        for keys in runs:
            replaced = keys_of_parts(keys)
            try:
                folder = self._stored(keys, out.absolute() / FOLDER, folders)
            except InputError as problem:
                read.append(problem)
            else:
                kept = {key: value for key, value in keys.items() if key not in replaced}
                read.append({**kept, _PARTITIONS: str(folder)})
        failed = [problem for problem in read if isinstance(problem, InputError)]
        if failed and len(failed) == len(read):
            raise failed[0]
        return read

    def _stored(
        self, keys: Mapping[str, Scalar], out: Path, folders: dict[tuple[object, ...], Path]
    ) -> Path:
        """Return the folder of the parts that a run reads; it is made where it is not there."""
        from retexo_fl.api.parts import store
        from retexo_fl.client.preparation import make_parts

        given = dict(keys)
        profile = given.pop("profile", None)
        config = settled(
            Asked(
                values=given, profile=None if profile is None else str(profile), graph=self.given
            ).of_run()
        )
        values = config_values(config)
        deciding = tuple(values[key] for key in sorted({*OF_PARTS, *_DECIDING}))
        if deciding not in folders:
            parts = make_parts(config, graph=self.given, quiet=self._quiet)
            folder = out / parts[0].partitioning[:_DIGITS]
            if not folder.exists():
                store(parts, folder)
            folders[deciding] = folder
        return folders[deciding]
