"""Arrays out of Python 2 pickles, which are walked opcode by opcode and never run.

A pickle is a program for a small stack machine. This reader has only the opcodes of protocols 0
to 2 that build numbers, strings, tuples, lists and dictionaries, and the few names that arrays,
CSR matrices and ``defaultdict(list)`` are pickled with. A name becomes a mark of ours, never
an object of its module: nothing is imported and nothing is called.

Source: the opcodes are documented in ``pickletools`` of Python's standard library.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Final, NoReturn

from retexo_fl.errors import DatasetError
from retexo_fl.graph.sources.named.pickled_objects import GLOBALS, Global, PickledObject, reduced

#: A graph of 100,000 nodes and a million neighbours takes 1.3 million. Chosen; not tuned.
MOST_OPCODES: Final = 8_000_000
_HIGHEST_PROTOCOL: Final = 2


def read_pickled(content: bytes, *, where: str) -> object:
    """Return what a pickle holds.

    Time and memory grow with the length of ``content`` only.

    Args:
        content: The whole file.
        where: Its name, for errors.

    Returns:
        ``int``, ``bool``, ``None``, ``bytes`` (strings of Python 2), ``str``, tuples, lists and
        dictionaries of them with plain keys, or a
        :class:`~retexo_fl.graph.sources.named.pickled_objects.PickledObject`.

    Raises:
        DatasetError: It is damaged, or builds anything else.
    """
    machine = _Machine(content, where)
    try:
        return machine.run()
    except (ValueError, IndexError, KeyError, TypeError, struct.error) as error:
        machine.fail(f"is damaged ({type(error).__name__})")


class _Machine:
    """The stack machine, as far as it is admitted."""

    def __init__(self, content: bytes, where: str) -> None:
        self._content = content
        self._where = where
        self._at = 0
        self._stack: list[object] = []
        self._marks: list[int] = []
        self._memo: dict[int, object] = {}

    def fail(self, problem: str) -> NoReturn:
        """Raise the error about this pickle."""
        raise DatasetError(
            f"{self._where}: byte {self._at}: {problem}; expected a pickle of plain arrays"
        )

    def run(self) -> object:
        """Walk to the end and return the value that is left."""
        for _ in range(MOST_OPCODES):
            opcode = self._take(1)
            if opcode == b".":
                break
            act = _ACTS.get(opcode)
            if act is None:
                self.fail(f"has opcode {opcode!r}")
            act(self)
        else:
            self.fail(f"has more than {MOST_OPCODES} opcodes")
        if len(self._stack) != 1 or self._marks:
            self.fail("leaves more or less than one value")
        return self._stack[0]

    # ---- the bytes ----------------------------------------------------------------------------

    def _take(self, count: int) -> bytes:
        end = self._at + count
        if count < 0 or end > len(self._content):
            self.fail(f"ends early: {count} more bytes are announced")
        part = self._content[self._at : end]
        self._at = end
        return part

    def _line(self) -> bytes:
        end = self._content.find(b"\n", self._at)
        if end < 0:
            self.fail("ends early: a line has no end")
        return self._take(end + 1 - self._at)[:-1]

    def _number(self, form: str) -> int:
        (number,) = struct.unpack(form, self._take(struct.calcsize(form)))
        return int(number)

    # ---- the stack ----------------------------------------------------------------------------

    def _since_mark(self) -> list[object]:
        start = self._marks.pop()
        values = self._stack[start:]
        del self._stack[start:]
        return values

    def _tuple(self, count: int) -> None:
        if len(self._stack) < count:
            self.fail("pops more values than its stack holds")
        values = tuple(self._stack[len(self._stack) - count :])
        del self._stack[len(self._stack) - count :]
        self._stack.append(values)

    def _extend(self, values: list[object]) -> None:
        target = self._stack[-1]
        if type(target) is not list:
            self.fail("appends to a value that is not a list")
        target.extend(values)

    def _set_items(self, values: list[object]) -> None:
        target = self._stack[-1]
        if type(target) is not dict or len(values) % 2:
            self.fail("sets items of a value that is not a dictionary")
        for key, value in zip(values[::2], values[1::2], strict=True):
            # The hash of nested tuples can take for ever.
            if not isinstance(key, int | str | bytes):
                self.fail(f"has a dictionary key of type {type(key).__name__}")
            target[key] = value

    # ---- opcodes with more than one step ------------------------------------------------------

    def protocol(self) -> None:
        version = self._take(1)[0]
        if version > _HIGHEST_PROTOCOL:
            self.fail(f"is of protocol {version}, not of 0 to {_HIGHEST_PROTOCOL}")

    def int_line(self) -> None:
        text = self._line()
        values: Mapping[bytes, bool] = {b"00": False, b"01": True}
        self._stack.append(values[text] if text in values else int(text))

    def string_line(self) -> None:
        text = self._line()
        if len(text) < 2 or text[:1] not in b"'\"" or text[:1] != text[-1:]:
            self.fail("has a string without quotes")
        self._stack.append(text[1:-1].decode("unicode_escape").encode("latin-1"))

    def name(self) -> None:
        name = (self._line().decode("latin-1"), self._line().decode("latin-1"))
        if name not in GLOBALS:
            self.fail(f"names {'.'.join(name)[:80]!r}")
        self._stack.append(GLOBALS[name])

    def call(self, *, as_class: bool) -> None:
        arguments, function = self._stack.pop(), self._stack.pop()
        if not isinstance(function, Global) or not isinstance(arguments, tuple):
            self.fail("calls a value that is not a function")
        if as_class and function is not Global.CSR_MATRIX:
            self.fail(f"instantiates {function.name}")
        self._stack.append(reduced(function, arguments, self.fail))

    def build(self) -> None:
        state, target = self._stack.pop(), self._stack[-1]
        if not isinstance(target, PickledObject):
            self.fail(f"sets the state of a {type(target).__name__}")
        target.build(state, self.fail)

    def remember(self, index: int) -> None:
        self._memo[index] = self._stack[-1]

    def recall(self, index: int) -> None:
        self._stack.append(self._memo[index])

    def constant(self, value: object) -> None:
        self._stack.append(value)

    def text(self, form: str, encoding: str | None) -> None:
        content = self._take(self._number(form))
        self._stack.append(content if encoding is None else content.decode(encoding))


_Act = Callable[[_Machine], None]


def _number_acts() -> dict[bytes, _Act]:
    return {
        b"I": _Machine.int_line,
        b"L": lambda m: m.constant(int(m._line().removesuffix(b"L"))),
        b"J": lambda m: m.constant(m._number("<i")),
        b"K": lambda m: m.constant(m._number("<B")),
        b"M": lambda m: m.constant(m._number("<H")),
        b"\x8a": lambda m: m.constant(
            int.from_bytes(m._take(m._number("<B")), "little", signed=True)
        ),
        b"N": lambda m: m.constant(None),
        b"\x88": lambda m: m.constant(True),
        b"\x89": lambda m: m.constant(False),
    }


def _text_acts() -> dict[bytes, _Act]:
    return {
        b"S": _Machine.string_line,
        b"T": lambda m: m.text("<i", None),
        b"U": lambda m: m.text("<B", None),
        b"V": lambda m: m.constant(m._line().decode("raw-unicode-escape")),
        b"X": lambda m: m.text("<I", "utf-8"),
    }


def _container_acts() -> dict[bytes, _Act]:
    return {
        b"(": lambda m: m._marks.append(len(m._stack)),
        b")": lambda m: m.constant(()),
        b"t": lambda m: m.constant(tuple(m._since_mark())),
        b"\x85": lambda m: m._tuple(1),
        b"\x86": lambda m: m._tuple(2),
        b"\x87": lambda m: m._tuple(3),
        b"]": lambda m: m.constant([]),
        b"l": lambda m: m.constant(m._since_mark()),
        b"a": lambda m: m._extend([m._stack.pop()]),
        b"e": lambda m: m._extend(m._since_mark()),
        b"}": lambda m: m.constant({}),
        b"d": _dictionary,
        b"s": lambda m: m._set_items([m._stack.pop(-2), m._stack.pop()]),
        b"u": lambda m: m._set_items(m._since_mark()),
    }


def _dictionary(machine: _Machine) -> None:
    items = machine._since_mark()
    machine.constant({})
    machine._set_items(items)


def _object_acts() -> dict[bytes, _Act]:
    return {
        b"\x80": _Machine.protocol,
        b"c": _Machine.name,
        b"R": lambda m: m.call(as_class=False),
        b"\x81": lambda m: m.call(as_class=True),
        b"b": _Machine.build,
        b"p": lambda m: m.remember(int(m._line())),
        b"q": lambda m: m.remember(m._number("<B")),
        b"r": lambda m: m.remember(m._number("<I")),
        b"g": lambda m: m.recall(int(m._line())),
        b"h": lambda m: m.recall(m._number("<B")),
        b"j": lambda m: m.recall(m._number("<I")),
    }


_ACTS: Final[Mapping[bytes, _Act]] = {
    **_number_acts(),
    **_text_acts(),
    **_container_acts(),
    **_object_acts(),
}
