"""``NAME.json``, ``NAME.md`` and ``NAME.png``, with where they came from."""

from __future__ import annotations

import io
import json
import platform
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from retexo_fl.errors import ConfigurationError
from retexo_fl.federation.hardware import describe_machine
from retexo_fl.files import write_whole
from sims.catalogue import Setting, load_recipe
from sims.origin import commit
from sims.outcome import Cell, Check, Figures, Outcome, figures_of, rows_of

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
            "`pip install matplotlib`"
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


def restate_results(folder: Path, name: str) -> tuple[list[Path], Sequence[Check]]:
    """Make published cells and lines anew from the figures of a written result; the rest stays.

    Returns:
        The paths that were written, and the lines.

    Raises:
        ConfigurationError: There is no such result.
    """
    paths = [folder / f"{name}.{suffix}" for suffix in ("json", "md")]
    try:
        facts = json.loads(paths[0].read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"--restate: {paths[0]} is not a written result ({error}); expected one of `python -m "
            f"sims {name}`"
        ) from error
    facts = restated(facts)
    write_whole(paths[0], [(json.dumps(facts, indent=2) + "\n").encode()])
    write_whole(paths[1], [markdown(facts).encode()])
    return paths, [Check(**check) for check in facts["checks"]]


def restated(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return a written result with published cells and lines as the code of today makes them.

    A recipe whose lines need more than its figures has no ``checks_from``: they stay as they are.
    """
    recipe, figures = load_recipe(str(facts["name"])), figures_of(rows_of(facts["rows"]))
    quick = "--quick" in str(facts["command"]).split()
    checks_from: Callable[..., list[Check]] | None = getattr(recipe, "checks_from", None)
    published_beside: Callable[[Figures], list[Cell]] | None = getattr(
        recipe, "published_beside", None
    )
    checks = facts["checks"]
    if checks_from is not None:
        checks = [check.facts() for check in checks_from(figures, quick=quick)]
    published = (
        [] if published_beside is None else [asdict(cell) for cell in published_beside(figures)]
    )
    known = {key: value for key, value in facts.items() if key not in ("published", "checks")}
    return {**known, "published": published, "checks": checks}


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
    if facts.get("published"):
        lines += ["", "| published | unit | figure | ours | ours is |", "|---|---|---|---|---|"]
        lines += map(_cell_line, facts["published"])
    if facts["checks"]:
        lines.append("")
    lines += [f"- {Check(**check).text}" for check in facts["checks"]]
    lines += ["", f"![{facts['title']}]({facts['name']}.png)", ""]
    return "\n".join(lines)


def _line(row: Mapping[str, Any]) -> str:
    reference = "" if row["reference"] is None else f"{row['reference']:.4f}"
    spread = row["spread"]
    median = f"{statistics.median(spread['values']):.4f}" if spread else ""
    between = f"{spread['low']:.4f} to {spread['high']:.4f}" if spread else ""
    cells = (row["metric"], row["unit"], reference, f"{row['ours']:.4f}", median, between)
    return f"| {' | '.join(cells)} |"


def _cell_line(cell: Mapping[str, Any]) -> str:
    spread = "" if cell["sd"] is None else f" ± {cell['sd']:g}"
    ours = "" if cell["ours"] is None else f"{cell['ours']:.4f}"
    cells = (cell["name"], cell["unit"], f"{cell['published']:,g}{spread}", ours, cell["how"])
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
