"""Text without names of columns: lists of edges as SNAP and KONECT have them, and N-Triples."""

from __future__ import annotations

import gzip
import logging
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import IO, Final

from retexo_fl.errors import TableError
from retexo_fl.graph.sources.tables.source import MOST_PROBLEMS, Cells, check_names, shown
from retexo_fl.units import counted

#: Lines at a time, and characters of one. Chosen; not tuned.
_BATCH_LINES: Final = 2**14
_MOST_CHARACTERS: Final = 2**16
_COMMENTS: Final = ("#", "%")
_LISTS: Final = (".txt", ".edges", ".edgelist", ".labels")
_TRIPLES: Final = ".nt"
_DAMAGE: Final = (OSError, EOFError, zlib.error, UnicodeDecodeError)
#: A statement (W3C, RDF 1.1 N-Triples, section 7): subject, predicate, object, a point.
_IRI: Final = r"<[^\x00-\x20<>\"{}|^`\\]*>"
_NODE: Final = rf"(?:{_IRI}|_:\S+)"
_STATEMENT: Final = re.compile(rf"\s*({_NODE})\s*({_IRI})\s*({_NODE}|\".*?\S)\s*\.\s*(?:#.*)?")
#: Column of what an edge says, and the names of the columns of triples.
PREDICATE: Final = "predicate"
TRIPLE_COLUMNS: Final = ("subject", PREDICATE, "object")

logger = logging.getLogger(__name__)


def bare_source(path: Path, first: Sequence[str]) -> BareLines | Triples | None:
    """Return a file as a table, if its name is that of a text without names of columns.

    Args:
        path: The file.
        first: What the first columns of a list are called.
    """
    ending = Path(path.name.lower().removesuffix(".gz")).suffix
    if ending == _TRIPLES:
        return Triples(path)
    return BareLines(path, first) if ending in _LISTS else None


class BareLines:
    """A table of fields between blanks or tabs; lines that begin with ``#`` or ``%`` are comments.

    The first columns are called as whoever reads it calls them. The others have the names of the
    last comment before the first row, if it has one for each column, as SNAP's signed networks do
    (``# FromNodeId ToNodeId Sign``), or their number from 0.
    """

    def __init__(self, path: Path, first: Sequence[str]) -> None:
        """Read up to the first row."""
        self.path = path
        comment: list[str] = []
        row: list[str] = []
        with _opened(path) as file:
            for line in _lines(path, file):
                if _is_row(line):
                    row = line.split()
                    break
                comment = line.strip().lstrip("".join(_COMMENTS)).split() or comment
        if row and len(row) < len(first):
            got = counted(len(row), "field")
            raise TableError(f"{path}: {self.place(0)}: got {got}; expected {' and '.join(first)}")
        width = max(len(row), len(first))
        others = comment[len(first) :] if len(comment) == width else []
        others = others or [str(number) for number in range(len(first), width)]
        self.names = check_names(path, (*first, *others))

    def batches(self, columns: Sequence[str]) -> Iterator[Mapping[str, Cells]]:
        """Yield some columns, a bounded number of rows at a time.

        Raises:
            TableError: A row has another number of fields; a line for each such row.
        """
        wanted = [self.names.index(name) for name in columns]
        problems: list[str] = []
        with _opened(self.path) as file:
            numbered = enumerate(_lines(self.path, file), start=1)
            while some := [*islice(numbered, _BATCH_LINES)]:
                rows = [(number, line.split()) for number, line in some if _is_row(line)]
                odd = [(number, row) for number, row in rows if len(row) != len(self.names)]
                problems += [
                    f"{self.path}: line {number}: got {counted(len(row), 'field')}; expected "
                    f"{len(self.names)}, as in the first row"
                    for number, row in odd[: MOST_PROBLEMS - len(problems)]
                ]
                if rows and not odd:
                    cells = [*zip(*(row for _, row in rows), strict=True)]
                    yield {name: [*cells[at]] for name, at in zip(columns, wanted, strict=True)}
        if problems:
            raise TableError(*problems)

    def place(self, row: int) -> str:
        """Return the line of a row."""
        return _line_of(self.path, row, _is_row)


class Triples:
    """N-Triples: statements whose object is a node, as edges; what they say is ``predicate``.

    Keys of nodes are IRIs without their brackets, and blank nodes as they are written.
    """

    names = TRIPLE_COLUMNS

    def __init__(self, path: Path) -> None:
        self.path = path

    def batches(self, columns: Sequence[str]) -> Iterator[Mapping[str, Cells]]:
        """Yield some columns of statements between nodes.

        Raises:
            TableError: Lines are no statements; one line for each.
        """
        wanted = [self.names.index(name) for name in columns]
        problems: list[str] = []
        of_values = 0
        with _opened(self.path) as file:
            numbered = enumerate(_lines(self.path, file), start=1)
            while some := [*islice(numbered, _BATCH_LINES)]:
                rows = []
                for number, line in some:
                    if not _is_row(line):
                        continue
                    found = _STATEMENT.fullmatch(line.rstrip("\r\n"))
                    if found is None:
                        if len(problems) < MOST_PROBLEMS:
                            told = f"got {shown(line.strip())}; expected <s> <p> <o> ."
                            problems.append(f"{self.path}: line {number}: {told}")
                    elif found[3].startswith('"'):
                        of_values += 1
                    else:
                        rows.append([term.strip("<>") for term in found.groups()])
                if rows:
                    cells = [*zip(*rows, strict=True)]
                    yield {name: [*cells[at]] for name, at in zip(columns, wanted, strict=True)}
        if problems:
            raise TableError(*problems)
        if of_values:
            told = f"statements about values, which are no edges: {of_values:,}"
            logger.warning("%s: %s", self.path, told)

    def place(self, row: int) -> str:
        """Return the line of a statement between nodes."""
        return _line_of(self.path, row, _is_between_nodes)


def _is_row(line: str) -> bool:
    """Return whether a line is neither empty nor a comment."""
    begin = line.lstrip()[:1]
    return bool(begin) and begin not in _COMMENTS


def _is_between_nodes(line: str) -> bool:
    found = _STATEMENT.fullmatch(line.rstrip("\r\n"))
    return found is not None and not found[3].startswith('"')


def _line_of(path: Path, row: int, counts: Callable[[str], bool]) -> str:
    with _opened(path) as file:
        lines = (number for number, line in enumerate(file, start=1) if counts(line))
        return f"line {next(islice(lines, row, None), 1)}"


def _lines(path: Path, file: IO[str]) -> Iterator[str]:
    number = 0
    while line := file.readline(_MOST_CHARACTERS + 1):
        number += 1
        if len(line) > _MOST_CHARACTERS:
            most = f"more than {_MOST_CHARACTERS} characters"
            raise TableError(f"{path}: line {number} has {most}; expected shorter ones")
        yield line


@contextmanager
def _opened(path: Path) -> Iterator[IO[str]]:
    try:
        if path.suffix.lower() == ".gz":
            with gzip.open(path, "rt", encoding="utf-8") as file:
                yield file
        else:
            with path.open(encoding="utf-8") as file:
                yield file
    except _DAMAGE as error:
        reason = getattr(error, "strerror", None) or error
        raise TableError(f"{path}: cannot be read, or damaged ({reason})") from error
