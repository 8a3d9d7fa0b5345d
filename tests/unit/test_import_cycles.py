"""No file imports, by whichever way, a file that imports it."""

from __future__ import annotations

from graphlib import CycleError, TopologicalSorter

import grimp
import pytest


def test_no_files_import_each_other_in_a_circle() -> None:
    graph = grimp.build_graph("retexo_fl")
    imports = {file: graph.find_modules_directly_imported_by(file) for file in graph.modules}
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        pytest.fail(" imports ".join(reversed(error.args[1])))
