"""All recipes by name: the files in ``sims/recipes``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Final, NamedTuple, Protocol, TypeVar, cast

from retexo_fl.errors import ConfigurationError
from sims import recipes
from sims.outcome import Figures, Outcome

Some = TypeVar("Some")
RECIPES: Final = tuple(sorted(module.name for module in iter_modules(recipes.__path__)))


class Written(NamedTuple):
    """A result to which seeds are added.

    Attributes:
        figures: Its rows.
        commits: That trained it.
    """

    figures: Figures
    commits: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """How a recipe is to be run.

    Attributes:
        quick: With sizes that only show that it works.
        data_dir: Folder with graphs as ``NAME.npz``, or None.
        kept: Folder where finished trainings of an interrupted recipe are kept, or None.
        written: Whose seeds are not trained again, or None.
    """

    quick: bool = False
    data_dir: Path | None = None
    kept: Path | None = None
    written: Written | None = None

    def few(self, values: Sequence[Some]) -> Sequence[Some]:
        """Return the first of some values with ``--quick``, else all."""
        return values[:1] if self.quick else values

    def has(self, dataset: str) -> bool:
        """Say whether a graph is at hand."""
        return self.data_dir is not None and (self.data_dir / f"{dataset}.npz").is_file()

    def folder_with(self, dataset: str) -> str:
        """Return the folder that holds a graph.

        Raises:
            ConfigurationError: It does not.
        """
        if not self.has(dataset):
            raise ConfigurationError(
                f"--data-dir: got {self.data_dir}; expected a folder with {dataset}.npz"
            )
        return str(self.data_dir)


class Recipe(Protocol):
    """What a file in ``sims/recipes`` has.

    It may have more, which is made of figures alone, be they new or of a written result:
    ``checks_from(figures, *, quick)`` returns the lines that must hold,
    ``published_beside(figures)`` every published figure of the experiment, and
    ``pictures(figures)`` what draws, each in axes of its own. With ``TAKES_SEEDS`` it heeds
    ``Setting.written``.
    """

    #: What the experiment shows, in half a line.
    PURPOSE: str

    def run(self, setting: Setting) -> Outcome:
        """Run the experiment."""
        ...


def load_recipe(name: str) -> Recipe:
    """Import one of :data:`RECIPES`."""
    return cast(Recipe, import_module(f"{recipes.__name__}.{name}"))
