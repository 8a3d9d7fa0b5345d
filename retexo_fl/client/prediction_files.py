"""A client's predictions as a file: CSV, Parquet or npz."""

from __future__ import annotations

import importlib.util
import io
import re
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

import numpy as np

from retexo_fl.errors import CheckpointError, ConfigurationError, LocalProtocolError, PartitionError
from retexo_fl.files import write_whole

#: Rows that are turned into text, or into a row group of Parquet, at once: bounds the memory beside
#: the arrays. Chosen; not tuned.
_ROWS_AT_ONCE: Final = 65_536
#: In a CSV field these need quotes (RFC 4180), as do blanks that a reader might strip.
_NEEDS_QUOTES: Final = re.compile(r'[,"\r\n]|^\s|\s$|^$')
#: At the beginning of a CSV field a spreadsheet takes these for a formula, also behind blanks.
_STARTS_FORMULA: Final = re.compile(r"\s*[=+\-@]|[\t\r]")
#: The form ``csv`` with keys that no spreadsheet takes for a formula.
SPREADSHEET_CSV: Final = "spreadsheet-csv"
#: The earliest time that zip files know, for all: equal predictions are equal bytes.
_NO_TIME: Final = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Predictions:
    """What a client predicts for its N inner nodes and C classes, in the order of its part.

    Attributes:
        keys: [N] bytes, dtype ``S``.
        classes: [N] int64 class with the largest logit.
        probabilities: [N, C] float32 or float64, softmax of the logits.
        names: Of the C classes; empty where they have none but their numbers.
    """

    keys: np.ndarray
    classes: np.ndarray
    probabilities: np.ndarray
    names: tuple[str, ...] = ()

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns of probabilities: ``p0``, ... or ``p_NAME`` of each class."""
        if self.names:
            return tuple(f"p_{name}" for name in self.names)
        return tuple(f"p{c}" for c in range(self.probabilities.shape[1]))


def predictions_name(client: int, form: str) -> str:
    """Return the name of a client's file."""
    return f"predictions-{client}.{form.removeprefix('spreadsheet-')}"


def check_form(form: str) -> None:
    """Check that predictions can be written in a form.

    Raises:
        ConfigurationError: There is no such form, or it needs what is not installed.
    """
    if form not in FORMS:
        raise ConfigurationError(f"format: got {form!r}; expected one of {', '.join(FORMS)}")
    if form == "parquet" and importlib.util.find_spec("pyarrow") is None:
        raise ConfigurationError(
            "format: parquet needs pyarrow, which is not installed; expected csv or npz, or "
            "pip install 'retexo-fl[tables]'"
        )


def check_keys(keys: np.ndarray, form: str, *, source: str) -> None:
    """Check that node keys can be written in a form: only npz holds any bytes, the others text.

    Args:
        keys: [N] bytes.
        form: One of :data:`FORMS`.
        source: Where the keys came from, for the error.

    Raises:
        PartitionError: A key is not UTF-8; the message names its row.
    """
    if form == "npz":
        return
    for row, key in enumerate(keys.tolist()):
        try:
            key.decode()
        except UnicodeDecodeError as error:
            raise PartitionError(
                f"{source}: node_keys: row {row} is {key!r}, which is not UTF-8; expected text, "
                "or the format npz, which holds any bytes"
            ) from error


def write_predictions(folder: Path, client: int, predictions: Predictions, form: str) -> None:
    """Write a client's predictions to its file in an existing folder, as a whole.

    Raises:
        LocalProtocolError: There is no such form.
        PartitionError: A node key is not text, which the form demands.
        CheckpointError: The folder is missing, or the file could not be written.
    """
    if form not in _WRITERS:
        raise LocalProtocolError(
            f"format of predictions: got {form!r}; expected one of {', '.join(_WRITERS)}"
        )
    check_keys(predictions.keys, form, source=f"client {client}")
    path = folder / predictions_name(client, form)
    if not folder.is_dir():
        # The process that asked made it; it is removed when that process ends and another starts.
        raise CheckpointError(f"{path}: could not be written (its folder was removed)")
    try:
        write_whole(path, _WRITERS[form](predictions), durable=True)
    except OSError as error:
        raise CheckpointError(f"{path}: could not be written ({error.strerror})") from error


def _spreadsheet_csv(predictions: Predictions) -> Iterator[bytes]:
    return _csv(predictions, escape=_no_formula)


def _csv(
    predictions: Predictions, *, escape: Callable[[str], str] = lambda text: text
) -> Iterator[bytes]:
    names = ",".join(("key", "class", *map(_field, predictions.columns)))
    yield f"{names}\n".encode()
    # Nine digits tell every float32 from its neighbours, and are formatted three times as fast as
    # the shortest form that does; for float64 the shortest is as fast as any.
    form = "%.9g" if predictions.probabilities.dtype == np.float32 else "%r"
    line = ",".join(("%s", "%s", *[form] * len(predictions.columns))) + "\n"
    classes = [_field(escape(name)) for name in predictions.names]
    for rows in _row_ranges(predictions):
        columns = zip(
            predictions.keys[rows].tolist(),
            predictions.classes[rows].tolist(),
            predictions.probabilities[rows].tolist(),
            strict=True,
        )
        yield "".join(
            line % (_field(escape(key.decode())), classes[chosen] if classes else chosen, *row)
            for key, chosen, row in columns
        ).encode()


def _no_formula(text: str) -> str:
    """Return a text that a spreadsheet shows as it is: an apostrophe marks it as text."""
    return f"'{text}" if _STARTS_FORMULA.match(text) else text


def _field(text: str) -> str:
    if not _NEEDS_QUOTES.search(text):
        return text
    doubled = text.replace('"', '""')
    return f'"{doubled}"'


def _parquet(predictions: Predictions) -> Iterator[bytes]:
    import pyarrow
    from pyarrow import parquet

    probabilities = predictions.probabilities
    number = pyarrow.float32() if probabilities.dtype == np.float32 else pyarrow.float64()
    kind = pyarrow.string() if predictions.names else pyarrow.int32()
    columns = [("key", pyarrow.string()), ("class", kind)]
    schema = pyarrow.schema([*columns, *((name, number) for name in predictions.columns)])
    file = io.BytesIO()
    with parquet.ParquetWriter(file, schema) as writer:
        for rows in _row_ranges(predictions):
            keys = [key.decode() for key in predictions.keys[rows].tolist()]
            arrays = [
                pyarrow.array(keys, pyarrow.string()),
                pyarrow.array(_named(predictions, rows), kind),
                *(pyarrow.array(np.ascontiguousarray(p)) for p in probabilities[rows].T),
            ]
            writer.write_batch(pyarrow.record_batch(arrays, schema=schema))
    yield file.getvalue()


def _named(predictions: Predictions, rows: slice) -> np.ndarray | list[str]:
    """Return the classes of rows, by name where they have names."""
    classes = predictions.classes[rows]
    return [predictions.names[c] for c in classes] if predictions.names else classes


def _npz(predictions: Predictions) -> Iterator[bytes]:
    arrays = {
        "key": predictions.keys,
        "class": predictions.classes,
        "probability": predictions.probabilities,
    }
    if predictions.names:
        arrays["class_name"] = np.array(predictions.names)
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, array in arrays.items():
            entry = zipfile.ZipInfo(f"{name}.npy", date_time=_NO_TIME)
            with archive.open(entry, "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.ascontiguousarray(array), allow_pickle=False)
    yield file.getvalue()


def _row_ranges(predictions: Predictions) -> Iterator[slice]:
    for start in range(0, len(predictions.keys), _ROWS_AT_ONCE):
        yield slice(start, start + _ROWS_AT_ONCE)


#: What writes each form; the name is also the ending of the file.
FORMS: Final = MappingProxyType[str, Callable[[Predictions], Iterator[bytes]]](
    {"csv": _csv, "parquet": _parquet, "npz": _npz}
)
_WRITERS: Final = MappingProxyType({**FORMS, SPREADSHEET_CSV: _spreadsheet_csv})
