"""A client's predictions as a file: CSV, Parquet or npz."""

from __future__ import annotations

import importlib.util
import io
import re
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import ClassVar, Final, Self, TypeAlias

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
#: Of a folder for predictions of one model.
_SET_NAME: Final = re.compile(r"[0-9a-f]{16}")
#: The earliest time that zip files know, for all: equal predictions are equal bytes.
_NO_TIME: Final = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Predictions:
    """What a client predicts for its N inner nodes, in the order of its part or :meth:`by_number`.

    Attributes:
        keys: [N] bytes, dtype ``S``.
        answers: [N] int64 classes, [N, L] int64 whether labels apply, or [N] numbers.
        probabilities: [N, C] float32 or float64, of classes or labels; None of numbers.
        names: Of the C classes; empty where they have none but their numbers.
        types: [N] bytes, names of the nodes' types, where those of several are predicted.
    """

    keys: np.ndarray
    answers: np.ndarray
    probabilities: np.ndarray | None = None
    names: tuple[str, ...] = ()
    types: np.ndarray | None = None

    @property
    def texts(self) -> dict[str, np.ndarray]:
        """[N] keys, and maybe types, by the name of their column."""
        return {"key": self.keys} | ({} if self.types is None else {"type": self.types})

    def by_number(self) -> Self:
        """Return the same with keys that are whole numbers ascending, 2 before 10, in each type."""
        order = np.arange(len(self.keys))
        types = np.zeros(len(self.keys)) if self.types is None else self.types
        for one in np.unique(types):
            rows = np.flatnonzero(types == one)
            order[rows] = rows[_by_number(self.keys[rows])]
        return replace(
            self,
            keys=self.keys[order],
            answers=self.answers[order],
            probabilities=None if self.probabilities is None else self.probabilities[order],
            types=None if self.types is None else self.types[order],
        )

    def columns(self) -> dict[str, np.ndarray]:
        """Return [N] numbers by the name of their column, in order, after the keys."""
        if self.probabilities is None:
            return {"value": self.answers}
        shares = self.probabilities.T
        if self.names:
            named = {f"p_{name}": column for name, column in zip(self.names, shares, strict=True)}
        else:
            named = {f"p{c}": column for c, column in enumerate(shares)}
        if self.answers.ndim == 1:
            return {"class": self.answers, **named}
        return {**{f"label{c}": column for c, column in enumerate(self.answers.T)}, **named}

    def arrays(self) -> dict[str, np.ndarray]:
        """Return everything by the names that arrays have in a file."""
        if self.probabilities is None:
            return {**self.texts, "value": self.answers}
        name = "class" if self.answers.ndim == 1 else "labels"
        arrays = {**self.texts, name: self.answers, "probability": self.probabilities}
        return {**arrays, "class_name": np.array(self.names)} if self.names else arrays


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LinkPredictions:
    """The likeliest links of a client's nodes: n of them, those of a node together.

    Attributes:
        keys: [n] bytes, of its own node.
        others: [n] bytes, of the other end.
        shares: [n] float32 or float64 probabilities.
    """

    keys: np.ndarray
    others: np.ndarray
    shares: np.ndarray
    names: ClassVar[tuple[str, ...]] = ()

    def by_number(self) -> Self:
        """Return the same with keys that are whole numbers ascending, 2 before 10."""
        order = _by_number(self.keys)
        return replace(
            self, keys=self.keys[order], others=self.others[order], shares=self.shares[order]
        )

    @property
    def texts(self) -> dict[str, np.ndarray]:
        """[n] keys by the name of their column."""
        return {"key": self.keys, "other": self.others}

    def columns(self) -> dict[str, np.ndarray]:
        """Return [n] numbers by the name of their column."""
        return {"p": self.shares}

    def arrays(self) -> dict[str, np.ndarray]:
        """Return everything by the names that arrays have in a file."""
        return {**self.texts, **self.columns()}


def _by_number(keys: np.ndarray) -> np.ndarray:
    """Return the order of [n] keys by number if all are whole numbers of int64; else their own."""
    try:
        numbers = keys.astype(np.int64)
    except (ValueError, OverflowError):
        return np.arange(len(keys))
    if not np.array_equal(numbers.astype("S"), keys):
        # Such as 007, which is another key than 7.
        return np.arange(len(keys))
    return np.argsort(numbers, kind="stable")


#: What a file is written of.
Table: TypeAlias = Predictions | LinkPredictions


def make_folder(folder: Path) -> None:
    """Make a folder of a set, if it is not there.

    Raises:
        CheckpointError: It could not be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CheckpointError(f"{folder}: could not be made ({error.strerror})") from error


def check_folder(folder: Path) -> None:
    """Check that the folder of a set is there.

    The process that asked made it; it is removed when that process ends and another starts.

    Raises:
        CheckpointError: It is not.
    """
    if not folder.is_dir():
        raise CheckpointError(f"{folder}: predictions could not be written (it was removed)")


def predictions_name(client: int, form: str) -> str:
    """Return the name of a client's file."""
    return f"predictions-{client}.{form.removeprefix('spreadsheet-')}"


def set_folder(folder: Path, name: str) -> Path:
    """Return the folder of a set of predictions below ``folder``.

    Args:
        folder: Of all predictions of a client.
        name: 16 hex digits; empty for ``folder`` itself.

    Raises:
        LocalProtocolError: It is no such name.
    """
    if name and not _SET_NAME.fullmatch(name):
        raise LocalProtocolError(f"set of predictions {name[:40]!r}: expected 16 hex digits")
    return folder / name


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
            "pip install pyarrow"
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
                # Without the key: the error may go to the server.
                f"{source}: node_keys: row {row} is not UTF-8; expected text, or the format npz, "
                "which holds any bytes"
            ) from error


def check_written_form(form: str) -> None:
    """Check the form that a server asks for.

    Raises:
        LocalProtocolError: There is none of this name.
        ConfigurationError: It needs what is not installed.
    """
    if form not in _WRITERS:
        raise LocalProtocolError(
            f"format of predictions: got {form[:40]!r}; expected one of {', '.join(_WRITERS)}"
        )
    check_form(form.removeprefix("spreadsheet-"))


def check_written(predictions: Table, form: str, *, client: int) -> None:
    """Check that a client's predictions can be written in a form that a server asks for.

    Raises:
        LocalProtocolError: There is no such form; likewise ``ConfigurationError``.
        PartitionError: A node key is not text, which the form demands.
    """
    check_written_form(form)
    for keys in predictions.texts.values():
        check_keys(keys, form, source=f"client {client}")


def write_predictions(folder: Path, client: int, predictions: Table, form: str) -> None:
    """Write predictions that :func:`check_written` found well to a client's file, as a whole.

    Keys that are whole numbers ascend by number, as the rows of most tables do.

    Raises:
        CheckpointError: The file could not be written.
    """
    path = folder / predictions_name(client, form)
    try:
        write_whole(path, _WRITERS[form](predictions.by_number()), durable=True)
    except OSError as error:
        raise CheckpointError(f"{path}: could not be written ({error.strerror})") from error


def _spreadsheet_csv(predictions: Table) -> Iterator[bytes]:
    return _csv(predictions, escape=_no_formula)


def _csv(
    predictions: Table, *, escape: Callable[[str], str] = lambda text: text
) -> Iterator[bytes]:
    columns, texts = predictions.columns(), predictions.texts
    yield f"{','.join(map(_field, (*texts, *columns)))}\n".encode()
    names = [_field(escape(name)) for name in predictions.names]
    forms = {name: _number_form(column.dtype) for name, column in columns.items()}
    if names:
        forms["class"] = "%s"
    line = ",".join((*["%s"] * len(texts), *forms.values())) + "\n"
    for rows in _row_ranges(predictions):
        keys = [
            (_field(escape(key.decode())) for key in column[rows].tolist())
            for column in texts.values()
        ]
        cells = {name: column[rows].tolist() for name, column in columns.items()}
        if names:
            cells["class"] = [names[c] for c in cells["class"]]
        yield "".join(line % row for row in zip(*keys, *cells.values(), strict=True)).encode()


def _number_form(dtype: np.dtype) -> str:
    if dtype.kind != "f":
        return "%d"
    # Nine digits tell every float32 from its neighbours, and are formatted three times as fast as
    # the shortest form that does; for float64 the shortest is as fast as any.
    return "%.9g" if dtype == np.float32 else "%r"


def _no_formula(text: str) -> str:
    """Return a text that a spreadsheet shows as it is: an apostrophe marks it as text."""
    return f"'{text}" if _STARTS_FORMULA.match(text) else text


def _field(text: str) -> str:
    if not _NEEDS_QUOTES.search(text):
        return text
    doubled = text.replace('"', '""')
    return f'"{doubled}"'


def _parquet(predictions: Table) -> Iterator[bytes]:
    import pyarrow
    from pyarrow import parquet

    kinds = {"f4": pyarrow.float32(), "f8": pyarrow.float64(), "i8": pyarrow.int32()}
    columns = predictions.columns()
    forms = {name: kinds[column.dtype.str[1:]] for name, column in columns.items()}
    if predictions.names:
        forms["class"] = pyarrow.string()
    texts = predictions.texts
    schema = pyarrow.schema([*((name, pyarrow.string()) for name in texts), *forms.items()])
    file = io.BytesIO()
    with parquet.ParquetWriter(file, schema) as writer:
        for rows in _row_ranges(predictions):
            arrays = [
                *(
                    pyarrow.array([key.decode() for key in text[rows].tolist()], pyarrow.string())
                    for text in texts.values()
                ),
                *(
                    pyarrow.array(_cells(predictions, name, column[rows]), forms[name])
                    for name, column in columns.items()
                ),
            ]
            writer.write_batch(pyarrow.record_batch(arrays, schema=schema))
    yield file.getvalue()


def _cells(predictions: Table, name: str, column: np.ndarray) -> np.ndarray | list[str]:
    """Return rows of a column as a file holds them: classes by name, where they have names."""
    if name == "class" and predictions.names:
        return [predictions.names[c] for c in column]
    return np.ascontiguousarray(column)


def _npz(predictions: Table) -> Iterator[bytes]:
    arrays = predictions.arrays()
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, array in arrays.items():
            entry = zipfile.ZipInfo(f"{name}.npy", date_time=_NO_TIME)
            with archive.open(entry, "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.ascontiguousarray(array), allow_pickle=False)
    yield file.getvalue()


def _row_ranges(predictions: Table) -> Iterator[slice]:
    for start in range(0, len(predictions.keys), _ROWS_AT_ONCE):
        yield slice(start, start + _ROWS_AT_ONCE)


#: What writes each form; the name is also the ending of the file.
FORMS: Final = MappingProxyType[str, Callable[[Table], Iterator[bytes]]](
    {"csv": _csv, "parquet": _parquet, "npz": _npz}
)
_WRITERS: Final = MappingProxyType({**FORMS, SPREADSHEET_CSV: _spreadsheet_csv})
