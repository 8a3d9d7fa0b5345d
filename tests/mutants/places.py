"""Where a file can be changed so that its program may do another thing, and what it then reads."""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_COMPARISONS: Final[dict[type[ast.cmpop], type[ast.cmpop]]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_ARITHMETICS: Final[dict[type[ast.operator], type[ast.operator]]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One file with one change.

    Attributes:
        path: The file, from the folder that holds the package.
        line: Where the change is, from 1.
        before: What stands there.
        after: What stands there in the mutant.
        source: The whole file, changed.
    """

    path: Path
    line: int
    before: str
    after: str
    source: str

    def __str__(self) -> str:
        """Return place and change on one line."""
        return f"{self.path}:{self.line}: {self.before}  ->  {self.after}"


def mutants_of(path: Path, root: Path) -> list[Mutant]:
    """Return every mutant of one file, in the order of their places."""
    source = path.read_text()
    finder = _Finder()
    finder.visit(ast.parse(source))
    return [
        Mutant(
            path=path.relative_to(root),
            line=node.lineno,
            before=" ".join(_segment(source, node).split()),
            after=" ".join(after.split()),
            source=_replaced(source, node, after),
        )
        for node, after in finder.found
    ]


class _Finder(ast.NodeVisitor):
    """Collects nodes inside functions, and the text that each is replaced by."""

    def __init__(self) -> None:
        self.found: list[tuple[ast.expr | ast.stmt, str]] = []
        self._depth = 0

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        for default in (*node.args.defaults, *filter(None, node.args.kw_defaults)):
            self._add_number(default)
        self._depth += 1
        for statement in node.body:
            self.visit(statement)
        self._depth -= 1

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self.visit_FunctionDef(node)

    def visit_Raise(self, node: ast.Raise) -> None:
        """Go on where something is refused; what the error says is skipped."""
        self._add(node, "pass", bare=True)

    def visit_Expr(self, node: ast.Expr) -> None:
        """Leave out a call for its effect."""
        if isinstance(node.value, ast.Call):
            self._add(node, "pass", bare=True)
            self.visit(node.value)

    def visit_Call(self, node: ast.Call) -> None:
        """Leave out each argument that has a name: its default counts, if there is one."""
        for at, keyword in enumerate(node.keywords):
            if keyword.arg is not None:
                changed = copy.copy(node)
                changed.keywords = [*node.keywords[:at], *node.keywords[at + 1 :]]
                self._add(node, ast.unparse(changed))
        self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        """Swap the branches."""
        self._add(
            node,
            f"{ast.unparse(node.orelse)} if {ast.unparse(node.test)} else {ast.unparse(node.body)}",
        )
        self.generic_visit(node)

    def visit_If(self, node: ast.If) -> None:
        """Take the other branch, where no changed comparison does that."""
        if not isinstance(node.test, ast.Compare | ast.BoolOp | ast.UnaryOp):
            self._add(node.test, f"not ({ast.unparse(node.test)})")
        self.generic_visit(node)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Skip texts."""

    def visit_Assign(self, node: ast.Assign) -> None:
        self._add_number(node.value)
        self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self._add_number(node.value)
            self.visit(node.value)

    def visit_Compare(self, node: ast.Compare) -> None:
        other = _COMPARISONS.get(type(node.ops[0]))
        if other is not None:
            self._change(node, lambda changed: _set(changed, "ops", [other(), *node.ops[1:]]))
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        other = _ARITHMETICS.get(type(node.op))
        if other is not None and not _is_text(node.left) and not _is_text(node.right):
            self._change(node, lambda changed: _set(changed, "op", other()))
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        self._change(node, lambda changed: _set(changed, "op", other))
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not):
            self._add(node, ast.unparse(node.operand))
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        if isinstance(node.op, ast.Add | ast.Sub):
            self._add(node, f"{ast.unparse(node.target)} = {ast.unparse(node.value)}", bare=True)
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, bool):
            self._add(node, str(not node.value))
        elif isinstance(node.value, int):
            self._add(node, str(node.value + 1))
        elif isinstance(node.value, float):
            self._add(node, str(2 * node.value + 1))

    def _add_number(self, node: ast.expr) -> None:
        """Double a number that stands outside of functions: a limit, a field's or an argument's."""
        parts = [part for part in ast.walk(node) if isinstance(part, ast.expr)]
        numeric = (ast.BinOp, ast.UnaryOp, ast.Constant)
        if self._depth == 0 and all(isinstance(part, numeric) for part in parts):
            values = [part.value for part in parts if isinstance(part, ast.Constant)]
            if all(type(value) in {int, float} for value in values):
                self.found.append((node, f"(2 * ({ast.unparse(node)}) + 1)"))

    def _change(self, node: ast.expr, change: Callable[[ast.expr], None]) -> None:
        changed = copy.deepcopy(node)
        change(changed)
        self._add(node, ast.unparse(changed))

    def _add(self, node: ast.expr | ast.stmt, after: str, *, bare: bool = False) -> None:
        if self._depth:
            self.found.append((node, after if bare else f"({after})"))


def _set(node: ast.expr, name: str, value: object) -> None:
    setattr(node, name, value)


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)
    )


def _offsets(source: str, node: ast.expr | ast.stmt) -> tuple[int, int]:
    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    starts = list(_line_starts(source.encode()))
    return (
        starts[node.lineno - 1] + node.col_offset,
        starts[node.end_lineno - 1] + node.end_col_offset,
    )


def _line_starts(data: bytes) -> Iterator[int]:
    start = 0
    for line in data.splitlines(keepends=True):
        yield start
        start += len(line)


def _segment(source: str, node: ast.expr | ast.stmt) -> str:
    first, end = _offsets(source, node)
    return source.encode()[first:end].decode()


def _replaced(source: str, node: ast.expr | ast.stmt, after: str) -> str:
    data = source.encode()
    first, end = _offsets(source, node)
    return (data[:first] + after.encode() + data[end:]).decode()
