"""The notebooks of docs/: running them, and what their committed outputs say.

python -m tests.support.notebooks    # runs them and writes their outputs anew
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from importlib import import_module
from pathlib import Path
from typing import Any

from tests.support.commands import ROOT

NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
TIMEOUT_S = 500

Notebook = dict[str, Any]


def executed(path: Path, folder: Path) -> Notebook:
    """Return the notebook as it is after a run of all its cells in ``folder``."""
    # Typed in part, and by some of their releases.
    nbformat: Any = import_module("nbformat")
    nbclient: Any = import_module("nbclient")
    content = nbformat.read(path, as_version=4)
    bin_folder = Path(sys.executable).parent
    client = nbclient.NotebookClient(
        content,
        timeout=TIMEOUT_S,
        kernel_name="python3",
        record_timing=False,
        resources={"metadata": {"path": str(folder)}},
    )
    variables = {
        "PATH": f"{bin_folder}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "IPYTHONDIR": str(folder / ".ipython"),
        # PyG imports bars of progress, for which Jupyter may have no widgets.
        "PYTHONWARNINGS": "ignore:IProgress not found",
    }
    client.execute(env={**os.environ, **variables})
    done: Notebook = json.loads(nbformat.writes(content))
    for cell in done["cells"]:
        cell["metadata"] = {}
    done["metadata"]["language_info"] = {"name": "python"}
    return done


def printed(notebook: Notebook) -> list[str]:
    """Return what each cell of code prints: all of one stream, then of the other.

    Lines of two streams arrive in an order of their own in each run.
    """
    cells = (cell["outputs"] for cell in notebook["cells"] if cell["cell_type"] == "code")
    return [
        "".join("".join(part.get("text", ())) for part in sorted(outputs, key=_stream_of))
        for outputs in cells
    ]


def _stream_of(output: dict[str, Any]) -> str:
    return str(output.get("name", ""))


def count_figures(notebook: Notebook) -> int:
    """Return how many figures there are."""
    outputs = [output for cell in notebook["cells"] for output in cell.get("outputs", ())]
    return sum("image/png" in output.get("data", {}) for output in outputs)


if __name__ == "__main__":
    for notebook_path in NOTEBOOKS:
        with tempfile.TemporaryDirectory() as scratch:
            done = executed(notebook_path, Path(scratch))
        text = json.dumps(done, indent=1, ensure_ascii=False)
        notebook_path.write_text(f"{text}\n", encoding="utf-8")
