"""``NAME.json``, ``NAME.md`` and ``NAME.png``, with where they came from."""

from __future__ import annotations

import io
import json
import platform
import statistics
from collections.abc import Mapping
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from retexo_fl.errors import ConfigurationError
from retexo_fl.federation.run_directory import describe_machine
from retexo_fl.files import write_whole
from sims.catalogue import Setting
from sims.origin import commit
from sims.outcome import Outcome

#: Of one pair of axes.
_INCHES: Final = (8.0, 4.5)
_INCHES_BESIDE: Final = 6.0
#: Characters of a value that stands in a line with others.
_LONGEST_LISTED: Final = 40
_DOTS_PER_INCH: Final = 110


def check_writable(folder: Path) -> None:
    """Find out before hours of training whether their results can be written.

    Raises:
        ConfigurationError: The folder cannot be made, or what draws figures is not installed.
    """
    if find_spec("matplotlib") is None:
        raise ConfigurationError(
            "matplotlib, which draws the figure, is not installed; expected "
            "`pip install 'retexo-fl[sims]'`"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(f"--out: {folder} cannot be made ({error.strerror})") from error


def write_results(folder: Path, name: str, setting: Setting, outcome: Outcome) -> list[Path]:
    """Write the three files of an outcome and return their paths."""
    facts = {"name": name, **origin(name, setting), **outcome.facts()}
    contents = {
        "json": (json.dumps(facts, indent=2) + "\n").encode(),
        "md": markdown(facts).encode(),
        "png": _figure(outcome),
    }
    paths = []
    for suffix, content in contents.items():
        paths.append(folder / f"{name}.{suffix}")
        write_whole(paths[-1], [content])
    return paths


def origin(name: str, setting: Setting) -> dict[str, Any]:
    """Return the command, commit, machine and versions behind a result; no path of a machine."""
    words = ["python", "-m", "sims", name]
    if setting.quick:
        words.append("--quick")
    if setting.data_dir is not None:
        words += ["--data-dir", "DIR"]
    packages = ("retexo-fl", "torch", "flwr", "numpy", "scipy")
    return {
        "command": " ".join(words),
        "commit": commit(),
        "hardware": describe_machine(),
        "versions": {"python": platform.python_version()}
        | {package: version(package) for package in packages},
    }


def markdown(facts: Mapping[str, Any]) -> str:
    """Return a result for people."""
    lines = [f"# {facts['title']}", "", f"`{facts['command']}`, commit {facts['commit']}", ""]
    for part in ("hardware", "versions", "setting"):
        notes = {k: v for k, v in facts[part].items() if len(str(v)) > _LONGEST_LISTED}
        listed = ", ".join(f"{k} {v}" for k, v in facts[part].items() if k not in notes)
        lines.append(f"- {part}: {listed}")
        lines += [f"- {key}: {note}" for key, note in notes.items()]
    lines += ["", "| figure | unit | reference | ours | median | least to most |"]
    lines += ["|---|---|---|---|---|---|", *map(_line, facts["rows"])]
    if facts["checks"]:
        lines.append("")
    lines += [f"- {'holds' if c['holds'] else 'FAILS'}: {c['line']}" for c in facts["checks"]]
    lines += ["", f"![{facts['title']}]({facts['name']}.png)", ""]
    return "\n".join(lines)


def _line(row: Mapping[str, Any]) -> str:
    reference = "" if row["reference"] is None else f"{row['reference']:.4f}"
    spread = row["spread"]
    median = f"{statistics.median(spread['values']):.4f}" if spread else ""
    between = f"{spread['low']:.4f} to {spread['high']:.4f}" if spread else ""
    cells = (row["metric"], row["unit"], reference, f"{row['ours']:.4f}", median, between)
    return f"| {' | '.join(cells)} |"


def _figure(outcome: Outcome) -> bytes:
    from matplotlib.figure import Figure

    width, height = _INCHES
    width += _INCHES_BESIDE * len(outcome.beside)
    figure = Figure(figsize=(width, height), layout="constrained")
    draws = (outcome.draw, *outcome.beside)
    for draw, axes in zip(draws, figure.subplots(ncols=len(draws), squeeze=False)[0], strict=True):
        draw(axes)
    figure.suptitle(outcome.title, fontsize=10)
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=_DOTS_PER_INCH, metadata={"Software": ""})
    return file.getvalue()
