"""Write ``retexo_fl/api/options.py``, ``docs/options.md``: ``python -m tests.support.options``."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from retexo_fl.config import default_values, field_of, free_keys, key_infos, panels
from retexo_fl.config.profiles import DEFAULT_PROFILE, PROFILES

_ROOT: Final = Path(__file__).parents[2]
PATH: Final = _ROOT / "retexo_fl/api/options.py"
PAGE: Final = _ROOT / "docs/options.md"
#: Arguments of the functions themselves, or of some of them alone.
_OWN: Final = frozenset({"partitions", "resume", "out"})
_HEAD: Final = '''\
"""The keys of a run as editors and type checkers know them: completed, with their values.

Made from :class:`~retexo_fl.config.RunConfig` by ``python -m tests.support.options``; a test
compares the two.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any, Literal, TypedDict
'''
_TOP: Final = """\
# Options

All keys of a run, defaults in bold. `--learning-rate 0.05` of `retexo run` is
`learning-rate = 0.05` in a TOML file for `--config`, and `retexo_fl.run(learning_rate=0.05)` in
[Python](python.md).

- `retexo plan` and `retexo sweep` take the same keys. `retexo partition make` takes `seed` and
  those of the graph, except `partitions` and `feature-normalisation`.
- An option that you do not give comes from the [profile](#profiles). The default profile, `lean`,
  changes some defaults below ([lean training](lean-training.md)).
- `module:attribute` names a [part of your own](extending.md)."""
_OF_PROFILES: Final = f"""\
`--profile NAME` sets the options below; an option that you give overrides it. The default is
`{DEFAULT_PROFILE}`. A run prints why where that does not apply, and the values that it adapts to
your graph. An empty cell is the default.
"""
#: Headings within the groups of the command line, by the first key of each.
_PARTS: Final = {
    "dataset": "Data sets and tables",
    "key-column": "Columns of tables",
    "partitions": "Parts and edges",
    "clients": "Clients, split and task",
    "feature-normalisation": "Features",
    "algorithm": "Algorithm and layers",
    "rounds": "Rounds, basis and solver",
    "optimizer": "Optimizer",
    "local-steps": "Local steps",
    "link-head": "Links, loss and metric",
    "aggregator": "Aggregation, masks and arithmetic",
}
_OPTION: Final = re.compile(r"(?<![\w-])--[a-z][a-z-]*[a-z](?![\w/-])")
#: Words of ranges, which a narrow column has as signs.
_SIGNS: Final = {
    "from 0 to below ": "≥ 0, < ",
    "at least ": "≥ ",
    "at most ": "≤ ",
    "above ": "> ",
    "from ": "",
}
_LISTS: Final = {
    "fanouts": "Sequence[int]",
    "devices": "Sequence[str]",
    "class-weights": "Sequence[float] | Mapping[str, float]",
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
    if info.metavar == "TIME":
        return "str | float | date"
    if info.metavar in {"DIR", "FILE", "RUN"}:
        return "str | Path" + (" | Sequence[str | Path]" if info.several else "")
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


def page() -> str:
    """Return the text of the page of all options."""
    lines, head = [_TOP], ["| option | meaning | values |", "|---|---|---|"]
    for heading, keys in panels().items():
        lines.append(f"\n## {heading}\n")
        for index, key in enumerate(keys):
            if key in _PARTS:
                lines += [*([""] if index else []), f"### {_PARTS[key]}\n"]
            if key in _PARTS or not index:
                lines += head
            cells = [f"`{key}`", _cell(key_infos()[key].help), _values(key)]
            lines.append(f"| {' | '.join(cells)} |")
    lines += ["\n## Profiles\n", _OF_PROFILES]
    names = ["option", *(f"`{name}`" for name in PROFILES)]
    lines += [f"| {' | '.join(names)} |", "|---" * len(names) + "|"]
    chosen = {key for values in PROFILES.values() for key in values}
    for key in sorted(chosen, key=_place):
        cells = [_told(values[key]) if key in values else "" for values in PROFILES.values()]
        lines.append(f"| `{key}` | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _told(value: object) -> str:
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _values(key: str) -> str:
    """Return what a key takes, its default first; nothing for texts and paths without one."""
    info, default = key_infos()[key], default_values()[key]
    told = "" if default == "" else f"**{_told(default)}**"
    if info.values:
        others = [f"`{value}`" for value in info.values if value != default]
        if info.extensible:
            others.append("`module:attribute`")
        return ", ".join([told, *others])
    brief = info.brief
    for words, sign in _SIGNS.items():
        brief = brief.replace(words, sign)
    is_first = told and brief.startswith(f"{default},")
    brief = _cell(brief.removeprefix(f"{default},") if is_first else brief)
    return f"{told},{brief}" if is_first else "; ".join(filter(None, [told, brief]))


def _cell(text: str) -> str:
    """Return text as a cell of a table, where a pipe would end it."""
    pieces = text.replace("|", "\\|").replace("<", "&lt;").split("`")
    # Options are code, in what is not code already; there an asterisk would begin emphasis.
    pieces[::2] = [_OPTION.sub(r"`\g<0>`", piece).replace("*", "\\*") for piece in pieces[::2]]
    return "`".join(pieces)


if __name__ == "__main__":
    PATH.write_text(written(), encoding="utf-8")
    PAGE.write_text(page(), encoding="utf-8")
