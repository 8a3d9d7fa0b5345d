"""Write ``retexo_fl/api/options.py``: ``python -m tests.support.options``."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from retexo_fl.config import default_values, field_of, free_keys, key_infos, panels

PATH: Final = Path(__file__).parents[2] / "retexo_fl/api/options.py"
#: Arguments of the functions themselves, or of some of them alone.
_OWN: Final = frozenset({"partitions", "resume", "out"})
_HEAD: Final = '''\
"""The keys of a run as editors and type checkers know them: completed, with their values.

Made from :class:`~retexo_fl.config.RunConfig` by ``python -m tests.support.options``; a test
compares the two.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, TypedDict
'''
_LISTS: Final = {
    "fanouts": "Sequence[int]",
    "devices": "Sequence[str]",
    "class-weights": "Sequence[float]",
}


def written() -> str:
    """Return the module's text."""
    blocks = [
        _HEAD,
        _class("Options", "TypedDict, total=False", "Keys of all calls.", _keys(), _type),
        _class("RunOptions", "Options, total=False", "Keys of a run.", ["out"], _type),
        _class(
            "MovedOptions",
            "TypedDict, total=False",
            "Keys in which a resumed run may differ.",
            sorted(free_keys() - {"resume", "out", "partitions", "last-rounds"}, key=_place),
            _type,
        ),
        _class(
            "SweepOptions",
            "TypedDict, total=False",
            "Keys of a sweep: a value, or a list of values with a run for each.",
            [*_keys(), "partitions"],
            lambda key: f"{_element(key)} | Sequence[{_element(key)}] | None",
        ),
        _function(),
    ]
    made = subprocess.run(
        [sys.executable, "-m", "ruff", "format", "-q", "--stdin-filename", str(PATH), "-"],
        input="\n\n".join(blocks),
        capture_output=True,
        text=True,
        check=True,
    )
    return made.stdout


def _keys() -> list[str]:
    return [key for key in key_infos() if key not in _OWN]


def _place(key: str) -> int:
    return [*key_infos()].index(key)


def _class(
    name: str, bases: str, told: str, keys: Iterable[str], type_of: Callable[[str], str]
) -> str:
    headings = {names[0]: heading for heading, names in panels().items()}
    lines = [f"class {name}({bases}):", f'    """{told}"""', ""]
    for key in keys:
        if key in headings and name in {"Options", "SweepOptions"}:
            lines.append(f"    # ---- {headings[key]} ----")
        lines.append(f"    {field_of(key)}: {type_of(key)}")
        if name in {"Options", "RunOptions"}:
            lines.append(_docstring(key_infos()[key].help))
    return "\n".join(lines) + "\n"


def _docstring(sentence: str) -> str:
    indent = "    "
    rows = textwrap.wrap(f'"""{sentence}', 96, initial_indent=indent, subsequent_indent=indent)
    return "\n".join(rows) + '"""' if len(rows) == 1 else "\n".join([*rows, f'{indent}"""'])


def _type(key: str) -> str:
    return f"{_element(key)} | None"


def _element(key: str) -> str:
    info, default = key_infos()[key], default_values()[key]
    if info.values:
        known = f"Literal[{', '.join(map(repr, info.values))}]"
        return f"{known} | str | Callable[..., Any]" if info.extensible else known
    if not isinstance(default, str):
        return type(default).__name__
    if info.metavar in {"DIR", "FILE", "RUN"}:
        return "str | Path"
    if key in _LISTS:
        return f"str | {_LISTS[key]}"
    return "str | Callable[..., Any]" if info.extensible or key == "dataset" else "str"


def _function() -> str:
    cells = ", ".join(
        f"{field_of(key)}: Any = {default_values()[key]!r}" for key in (*_keys(), "out")
    )
    return (
        f"def every_key(  # noqa: PLR0913\n    *, {cells}) -> None:\n"
        '    """Name all keys with their defaults, for editors that read no such classes."""\n'
    )


if __name__ == "__main__":
    PATH.write_text(written(), encoding="utf-8")
