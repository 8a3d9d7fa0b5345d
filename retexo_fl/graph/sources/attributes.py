"""Attributes of nodes by which a graph can be cut: the school of a person, the site of a sensor."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from retexo_fl.dates import without_dates
from retexo_fl.errors import DatasetError
from retexo_fl.graph.checks import ArrayChecks

#: How a partitioner begins that cuts by an attribute.
ATTRIBUTE: Final = "attribute:"


def attribute_names(partitioner: str) -> tuple[str, ...]:
    """Return the attributes of nodes that a partitioner needs: one, or none."""
    return (partitioner.removeprefix(ATTRIBUTE),) if partitioner.startswith(ATTRIBUTE) else ()


def attribute_texts(
    source: str, attributes: Mapping[str, Any], *, num_nodes: int
) -> dict[str, np.ndarray]:
    """Return the values of attributes as bytes, so that every source of a graph gives the same.

    Args:
        source: Where they come from, for errors.
        attributes: By name [N] text (UTF-8 where it is bytes), integers, which become decimal
            text, or dates, which become that of ISO 8601.
        num_nodes: N.

    Returns:
        By name [N] bytes, dtype ``S``, none of them empty.

    Raises:
        DatasetError: An attribute is not as described.
    """
    checks = ArrayChecks(source=source, error=DatasetError)
    found = {name: _texts(checks, name, values) for name, values in attributes.items()}
    for name, values in found.items():
        checks.form(name, values, kinds="S", shape=(num_nodes,))
    return found


def count_values(source: str, name: str, values: np.ndarray) -> int:
    """Return how many different values an attribute has: one client for each."""
    return len(np.unique(attribute_texts(source, {name: values}, num_nodes=len(values))[name]))


def demand_attributes(source: str, there: Iterable[str], names: Sequence[str]) -> None:
    """Check that a graph has attributes.

    Raises:
        DatasetError: It has no attribute of such a name.
    """
    for name in names:
        if name not in there:
            raise DatasetError(
                f"{source}: has no attribute {name!r} of nodes; "
                f"there is: {', '.join(sorted(there)) or 'none'}"
            )


def _texts(checks: ArrayChecks, name: str, given: Any) -> np.ndarray:
    values = np.asarray(given)
    if values.dtype.kind == "M":
        values = np.array(without_dates(values), dtype=object)
    if values.dtype.kind == "O":
        values = _text_of_objects(checks, name, without_dates(values.tolist()))
    if values.dtype.kind not in "iuUS" or values.ndim != 1:
        checks.fail(
            name,
            f"got {values.dtype} of shape {values.shape}; expected a text or a whole number for "
            "each node",
        )
    texts = values.tolist()
    if values.dtype.kind != "S":
        texts = [str(value).encode(errors="surrogatepass") for value in texts]
    # An array of dtype S does not keep a NUL at the end.
    if b"\0" in b"".join(texts):
        row = next(row for row, text in enumerate(texts) if b"\0" in text)
        checks.fail(name, f"row {row} holds a NUL character; expected none")
    if b"" in texts:
        checks.fail(name, f"row {texts.index(b'')} is empty; expected a value for each node")
    return np.array(texts, dtype=np.bytes_)


def _text_of_objects(checks: ArrayChecks, name: str, values: list[Any]) -> np.ndarray:
    """Return objects that are text or whole numbers as text."""
    for row, value in enumerate(values):
        if isinstance(value, bool) or not isinstance(value, str | int | np.integer):
            checks.fail(name, f"row {row} is {value!r:.60}; expected text or a whole number")
    return np.array([str(value) for value in values], dtype=np.str_)
