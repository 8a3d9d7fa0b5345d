"""``NAME.json``, ``NAME.md`` and ``NAME.png``, with where they came from."""

from __future__ import annotations

import io
import json
import platform
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from retexo_fl.errors import ConfigurationError
from retexo_fl.federation.hardware import describe_machine
from retexo_fl.files import write_whole
from sims.catalogue import Recipe, Setting, Written, load_recipe
from sims.origin import commit
from sims.outcome import Cell, Check, Draw, Figures, figures_of, rows_of

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


def write_results(
    folder: Path, name: str, setting: Setting, recipe: Recipe
) -> tuple[list[Path], Sequence[Check]]:
    """Run a recipe and write its three files.

    Returns:
        Their paths, and the lines that must hold.
    """
    outcome = recipe.run(setting)
    facts = restated({"name": name, **origin(name, setting), **outcome.facts()}, recipe)
    return _write(folder, facts, outcome.pictures or _pictures(facts, recipe))


def restate_results(folder: Path, name: str) -> tuple[list[Path], Sequence[Check]]:
    """Make anew what follows from the figures of a written result; the rest stays.

    Returns:
        The paths that were written, and the lines.

    Raises:
        ConfigurationError: There is no such result.
    """
    facts = _read(folder, name, "--restate")
    recipe = load_recipe(name)
    facts = restated(facts, recipe)
    return _write(folder, facts, _pictures(facts, recipe))


def written_result(folder: Path, name: str) -> Written:
    """Return a written result to which seeds can be added.

    Raises:
        ConfigurationError: There is none, or the recipe does not add seeds.
    """
    if not getattr(load_recipe(name), "TAKES_SEEDS", False):
        raise ConfigurationError(f"--extend: {name} cannot add seeds; expected a run without it")
    facts = _read(folder, name, "--extend")
    commits = str(facts["setting"]["trained at commit"]).split()
    return Written(figures=figures_of(rows_of(facts["rows"])), commits=tuple(commits))


def _read(folder: Path, name: str, option: str) -> dict[str, Any]:
    path = folder / f"{name}.json"
    try:
        facts: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"{option}: {path} is not a written result ({error}); expected one of `python -m "
            f"sims {name}`"
        ) from error
    return facts


def restated(facts: Mapping[str, Any], recipe: Recipe) -> dict[str, Any]:
    """Return a result with published cells and lines as the code of today makes them.

    A recipe whose lines need more than its figures has no ``checks_from``: they stay as they are.
    """
    figures = figures_of(rows_of(facts["rows"]))
    quick = "--quick" in str(facts["command"]).split()
    checks_from: Callable[..., Iterable[Check]] | None = getattr(recipe, "checks_from", None)
    published_beside: Callable[[Figures], Iterable[Cell]] | None = getattr(
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


def _pictures(facts: Mapping[str, Any], recipe: Recipe) -> Sequence[Draw]:
    """Return what draws a result's figures; nothing where more than they are drawn."""
    pictures: Callable[[Figures], Sequence[Draw]] | None = getattr(recipe, "pictures", None)
    return () if pictures is None else pictures(figures_of(rows_of(facts["rows"])))


def _write(
    folder: Path, facts: Mapping[str, Any], pictures: Sequence[Draw]
) -> tuple[list[Path], Sequence[Check]]:
    contents = {
        "json": (json.dumps(facts, indent=2) + "\n").encode(),
        "md": markdown(facts).encode(),
    }
    if pictures:
        contents["png"] = _figure(str(facts["title"]), pictures)
    paths = []
    for suffix, content in contents.items():
        paths.append(folder / f"{facts['name']}.{suffix}")
        write_whole(paths[-1], [content])
    return paths, [Check(**check) for check in facts["checks"]]


def origin(name: str, setting: Setting) -> dict[str, Any]:
    """Return the command, commit, machine and versions behind a result; no path of a machine.

    Seeds that were added (``--extend``) come to what the whole command comes to.
    """
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


def _figure(title: str, pictures: Sequence[Draw]) -> bytes:
    from matplotlib.figure import Figure

    width, height = _INCHES
    width += _INCHES_BESIDE * (len(pictures) - 1)
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots(ncols=len(pictures), squeeze=False)[0]
    for draw, place in zip(pictures, axes, strict=True):
        draw(place)
    figure.suptitle(title, fontsize=10)
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=_DOTS_PER_INCH, metadata={"Software": ""})
    return file.getvalue()
