"""What the recipes that repeat RETEXO's evaluation have in common."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final

from retexo_fl.config import Scalar
from sims.catalogue import Setting
from sims.sweep import Sweep
from sims.trainings import Keys

#: RETEXO's settings for its small graphs.
#: Source: RETEXO, section 4 (data sets and hyperparameters).
SMALL: Final[Keys] = MappingProxyType(
    {
        "clients": 2,
        "partitioner": "random",
        "split": "random-unstratified:0.2/0.1/0.7",
        "layers": 2,
        "hidden": 256,
        "heads": 8,
        "rounds": 100,
        "learning-rate": 0.003,
        "dropout": 0.3,
        "weight-decay": 5e-4,
    }
)
#: Its settings for the large ones, which differ; they need a machine with room for them.
_LARGE: Final[Mapping[str, Keys]] = MappingProxyType(
    {
        "reddit": MappingProxyType(
            {
                "split": "random-unstratified:0.66/0.10/0.24",
                "layers": 4,
                "rounds": 200,
                "learning-rate": 0.01,
                "dropout": 0.5,
            }
        ),
        "products": MappingProxyType(
            {"split": "random-unstratified:0.08/0.02/0.9", "layers": 3, "rounds": 200}
        ),
    }
)
_LARGE_GAT: Final[Mapping[str, Keys]] = MappingProxyType(
    {
        "reddit": MappingProxyType({"layers": 2, "learning-rate": 0.003, "dropout": 0.0}),
        "products": MappingProxyType({"dropout": 0.0}),
    }
)
#: Sizes that only show that a recipe works; enough to learn something, so that lines about accuracy
#: mean something.
QUICK: Final[Keys] = MappingProxyType({"rounds": 25, "hidden": 32, "learning-rate": 0.03})
#: Graphs of the paper that are not public files of one form: taken where ``--data-dir`` has them.
OPTIONAL: Final = ("lastfm_asia", "reddit", "products")
#: The paper has ten runs; ``tuple(range(10))`` takes a night.
SEEDS: Final = (0, 1, 2, 3, 4)


def keys_for(setting: Setting, dataset: str, model: str, **more: Scalar) -> dict[str, Any]:
    """Return the paper's settings for a graph and a layer, those of ``--quick``, and more keys.

    Raises:
        ConfigurationError: The graph is not at hand.
    """
    large = _LARGE.get(dataset, {})
    if model == "gat":
        large = {**large, **_LARGE_GAT.get(dataset, {})}
    return {
        **SMALL,
        **large,
        "dataset": dataset,
        "data-dir": setting.folder_with(dataset),
        "model": model,
        **(QUICK if setting.quick else {}),
        **more,
    }


def at_hand(setting: Setting, datasets: Iterable[str]) -> list[str]:
    """Return the graphs that there are; those that are not :data:`OPTIONAL` must be there.

    Raises:
        ConfigurationError: One of them is not.
    """
    found = [name for name in datasets if name not in OPTIONAL or setting.has(name)]
    for name in found:
        setting.folder_with(name)
    return found


def described(setting: Setting, keys: Keys, sweep: Sweep, **notes: object) -> dict[str, object]:
    """Return an outcome's setting: keys that all trainings share, seeds, commits and notes.

    Args:
        setting: With its ``quick``, :data:`QUICK` takes the place of what the keys say.
        keys: Of all trainings; where a graph lies is left out.
        sweep: Tells seeds and commits.
        notes: What else a reader should know.
    """
    shared = {key: value for key, value in keys.items() if key != "data-dir"}
    if setting.quick:
        shared |= {key: value for key, value in QUICK.items() if key in keys}
    told = {name.replace("_", " "): note for name, note in notes.items()}
    return {**shared, "seeds": list(sweep.seeds), "trained at commit": sweep.commits, **told}


def missing_note(setting: Setting, datasets: Iterable[str]) -> str:
    """Say which optional graphs were not at hand, for an outcome's setting."""
    missing = [name for name in datasets if name in OPTIONAL and not setting.has(name)]
    return ", ".join(missing) or "none"
