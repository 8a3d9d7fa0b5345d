"""Which labels are learned, where arrays hold several: a column of ``y``, or another array."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from retexo_fl.errors import DatasetError
from retexo_fl.graph.sources.foreign import as_array

LABELS: Final = "y"
#: Texts for the columns of :data:`LABELS`.
LABEL_NAMES: Final = f"{LABELS}_names"
#: The key that chooses, in errors.
LABEL_KEY: Final = "label-column"
_MOST_NAMES: Final = 12


def chosen_labels(there: Mapping[str, Any], label: str) -> Any:
    """Return the labels among arrays by name; None where there are none.

    Args:
        there: ``y``, and maybe ``y_names`` for its columns.
        label: Name of another array, or name or number of a column of ``y``; empty for ``y``.
    """
    if not label or there.get(label) is not None:
        return there.get(label or LABELS)
    columns = _columns(there)
    return as_array(there[LABELS])[:, columns.index(label)] if label in columns else None


def told_choice(there: Mapping[str, Any]) -> str:
    """Return what :func:`chosen_labels` chooses from, in words."""
    columns = _columns(there)
    named = ", ".join(columns[:_MOST_NAMES]) + ", ..." * (len(columns) > _MOST_NAMES)
    return "the name of an array" + f", or of a column of {LABELS}: {named}" * bool(columns)


def refuse_choice(source: str, label: str) -> None:
    """Refuse a choice where labels are made already.

    Raises:
        DatasetError: There is one.
    """
    if label:
        raise DatasetError(
            f"{LABEL_KEY}: got {label[:60]!r}, but {source} has its labels; expected no such key"
        )


def _columns(there: Mapping[str, Any]) -> list[str]:
    """Return what columns of labels are called, by number where nothing names them."""
    labels = there.get(LABELS)
    shape = getattr(labels, "shape", None) or as_array(() if labels is None else labels).shape
    if len(shape) != 2:
        return []
    names = there.get(LABEL_NAMES)
    found = list(map(str, range(shape[1]) if names is None else as_array(names).tolist()))
    return found if len(found) == shape[1] else []
