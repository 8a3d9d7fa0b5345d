"""The table of public data sets: complete, pinned, and of the documented sizes."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

import numpy as np
import pytest

from retexo_fl.graph.sources.named.table import NAMED
from retexo_fl.graph.sources.npz_graph import describe_npz_graph
from tests.support.data import data_dir

#: SHA-256 of ``ind.NAME.x``, which is not read, and the exclusive or of all eight files that
#: MLDatasets.jl publishes for the data set.
_JOINT = {
    "cora": (
        "23cfa55d91c6f624233f5eb7b6e3f141f1bd2b2ae39608a63cf5d084bb27baab",
        "81de017067dc045ebdb8ffd5c0e69a209973ffdb1fe2d5b434e94d3614f3f5c7",
    ),
    "citeseer": (
        "d20de19150741e555de0ed037195630fc194114ebc7fd72ced62810148aa22f6",
        "7f7ec4df97215c573eee316de35754d89382011dfd9fb2b954a4a491057e3eb3",
    ),
    "pubmed": (
        "fbe9cb5c47200d1b7769a26e579be3b7130b556831f9d850e77c4c74f2599b33",
        "0b8bf8e80564611b540655e9cbb8c5900dd3728d4ababe0b990b6f27144bd76c",
    ),
}


#: Of which no copy is at hand: their sizes are what their authors say.
_NOWHERE = {"lastfm_asia"}


@pytest.mark.parametrize("name", sorted(_JOINT))
def test_pins_agree_with_the_joint_checksum_of_another_project(name: str) -> None:
    unread, joint = _JOINT[name]
    total = int(unread, 16)
    for file in NAMED[name].files:
        total ^= int(file.sha256 or "", 16)
    assert f"{total:064x}" == joint


@pytest.mark.parametrize("name", sorted(NAMED))
def test_sources_are_https_and_downloads_are_pinned(name: str) -> None:
    dataset = NAMED[name]
    assert dataset.name == name
    assert len({file.name for file in dataset.files}) == len(dataset.files)
    for file in dataset.files:
        parts = urlsplit(file.url)
        assert parts.scheme == "https"
        assert parts.path.endswith(f"/{file.name}")
        assert (file.sha256 is not None) == dataset.downloadable
        if dataset.downloadable:
            assert re.fullmatch("[0-9a-f]{64}", file.sha256 or "")
            assert re.search("/[0-9a-f]{40}/", parts.path)


@pytest.mark.real_graphs
@pytest.mark.parametrize("name", sorted(set(NAMED) - _NOWHERE))
def test_sizes_are_those_of_the_files(name: str) -> None:
    dataset = NAMED[name]
    path = data_dir() / f"{name}.npz"
    found = describe_npz_graph(path)
    width = found["features"]
    with np.load(path) as arrays:
        if "raw_x_shape" in arrays:
            # Where the file has reduced features, the source's own are listed.
            width = int(arrays["raw_x_shape"][1])
    assert (dataset.nodes, dataset.edges, dataset.features, dataset.classes, dataset.split) == (
        *(found["nodes"], found["edges"], width, found["classes"], found["split"]),
    )


def test_what_is_downloaded() -> None:
    assert sorted(name for name, one in NAMED.items() if one.downloadable) == [
        *("citeseer", "cora", "github", "pubmed", "tolokers")
    ]
