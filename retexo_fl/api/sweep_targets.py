"""Several labels in a sweep: what one run learns is no feature of another."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from retexo_fl.config import AUTO_FEATURES, Scalar

_LABEL: Final = "label-column"
_DROP: Final = "drop-columns"


def without_learned_features(
    runs: Sequence[Mapping[str, Scalar]], tell: Callable[[str], None]
) -> list[Mapping[str, Scalar]]:
    """Leave the labels of all runs out of the features that a recipe is made of.

    Nodes of which one label is asked for seldom have the other one either, and a model that reads
    it would be judged too well.

    Args:
        runs: Keys of each run.
        tell: Is handed a sentence where something is left out.
    """
    targets: dict[Scalar | None, list[str]] = {}
    for keys in runs:
        if keys.get("features") == AUTO_FEATURES and keys.get(_LABEL):
            found = targets.setdefault(keys.get("nodes"), [])
            found += {str(keys[_LABEL])}.difference(found)
    several = {nodes: names for nodes, names in targets.items() if len(names) > 1}
    for names in several.values():
        tell(f"features: {', '.join(names)} are labels here, and features of no run ({_DROP})")
    return [_without(keys, several.get(keys.get("nodes"), [])) for keys in runs]


def _without(keys: Mapping[str, Scalar], names: Sequence[str]) -> Mapping[str, Scalar]:
    if not names or keys.get("features") != AUTO_FEATURES:
        return keys
    own = [name for name in str(keys.get(_DROP, "")).split(",") if name]
    return {**keys, _DROP: ",".join(dict.fromkeys((*own, *names)))}
