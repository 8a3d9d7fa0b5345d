"""``NAME.json``, ``NAME.md`` and ``NAME.png``, with where they came from."""

from __future__ import annotations

import io
import json
import platform
import subprocess
from collections.abc import Mapping
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from retexo_fl.errors import ConfigurationError
from retexo_fl.federation.run_directory import describe_machine
from retexo_fl.files import write_whole
from sims.catalogue import Setting
from sims.outcome import Outcome

_REPOSITORY: Final = Path(__file__).resolve().parents[1]
_INCHES: Final = (8.0, 4.5)
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
        "commit": _commit(),
        "hardware": describe_machine(),
        "versions": {"python": platform.python_version()}
        | {package: version(package) for package in packages},
    }


def markdown(facts: Mapping[str, Any]) -> str:
    """Return a result for people."""
    lines = [f"# {facts['title']}", "", f"`{facts['command']}`, commit {facts['commit']}", ""]
    for part in ("hardware", "versions", "setting"):
        listed = ", ".join(f"{key} {value}" for key, value in facts[part].items())
        lines.append(f"- {part}: {listed}")
    lines += ["", "| figure | unit | reference | ours | least to most |", "|---|---|---|---|---|"]
    for row in facts["rows"]:
        reference = "" if row["reference"] is None else f"{row['reference']:.4f}"
        spread = row["spread"]
        between = f"{spread['low']:.4f} to {spread['high']:.4f}" if spread else ""
        cells = (row["metric"], row["unit"], reference, f"{row['ours']:.4f}", between)
        lines.append(f"| {' | '.join(cells)} |")
    if facts["checks"]:
        lines.append("")
    lines += [f"- {'holds' if c['holds'] else 'FAILS'}: {c['line']}" for c in facts["checks"]]
    lines += ["", f"![{facts['title']}]({facts['name']}.png)", ""]
    return "\n".join(lines)


def _figure(outcome: Outcome) -> bytes:
    from matplotlib.figure import Figure

    figure = Figure(figsize=_INCHES, layout="constrained")
    axes = figure.subplots()
    outcome.draw(axes)
    axes.set_title(outcome.title, fontsize=10)
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=_DOTS_PER_INCH, metadata={"Software": ""})
    return file.getvalue()


def _commit() -> str:
    """Return the commit, marked where the tree differs from it; ``unknown`` outside a clone."""
    command = ["git", "-C", str(_REPOSITORY), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return "unknown"
    return done.stdout.strip() or "unknown"
