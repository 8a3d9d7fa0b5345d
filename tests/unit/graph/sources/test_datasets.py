"""Data sets by name."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest

from retexo_fl.errors import ConfigurationError, DatasetError
from retexo_fl.graph import DatasetInfo, list_datasets, load_dataset
from retexo_fl.graph.sources.datasets import count_dataset_values
from retexo_fl.graph.sources.named.table import NAMED
from tests.unit.graph.sources.test_npz_graph import SMALL, write_npz


def test_digits_are_a_symmetric_nearest_neighbour_graph() -> None:
    graph = load_dataset("digits", data_dir=None)
    assert (graph.num_nodes, graph.num_features, graph.num_classes) == (1797, 64, 10)
    assert graph.degrees.min() >= 8
    assert graph.published_split is None
    features = graph.features
    assert isinstance(features, np.ndarray)
    assert (features.min(), features.max()) == (0.0, 1.0)
    edges = graph.edge_list()
    same_class = graph.labels[edges[0]] == graph.labels[edges[1]]
    assert same_class.mean() > 0.95
    distances = ((features[5] - features) ** 2).sum(axis=1)
    nearest = np.argsort(distances)[1:9]
    assert set(nearest) <= set(graph.indices[graph.indptr[5] : graph.indptr[6]])


def test_digits_are_always_the_same() -> None:
    first = load_dataset("digits", data_dir=None)
    assert first.num_edges == 9929
    labels, indices = first.labels.copy(), first.indices.copy()
    first.labels[:] = first.indices[:] = 0
    again = load_dataset("digits", data_dir=None)
    np.testing.assert_array_equal(again.labels, labels)
    np.testing.assert_array_equal(again.indices, indices)


def test_load_dataset_reads_a_file_of_the_folder(tmp_path: Path) -> None:
    write_npz(tmp_path / "mine.npz")
    graph = load_dataset("mine", data_dir=tmp_path)
    assert (graph.name, graph.num_nodes, graph.num_edges) == ("mine", 4, 3)


def test_attributes_are_arrays_of_the_file_and_read_if_asked_for(tmp_path: Path) -> None:
    write_npz(tmp_path / "mine.npz", site=np.array([7, 7, 10, 7], dtype=np.int16))
    graph = load_dataset("mine", data_dir=tmp_path, attributes=("site", "y"))
    assert graph.attributes["site"].tolist() == [b"7", b"7", b"10", b"7"]
    assert graph.attributes["y"].tolist() == [str(label).encode() for label in graph.labels]
    assert dict(load_dataset("mine", data_dir=tmp_path).attributes) == {}
    assert count_dataset_values("mine", "site", data_dir=tmp_path) == 2
    with pytest.raises(DatasetError, match="mine.npz: town: missing; the file has .*site"):
        load_dataset("mine", data_dir=tmp_path, attributes=("town",))
    with pytest.raises(DatasetError, match="mine.npz: town: missing; the file has .*site"):
        count_dataset_values("mine", "town", data_dir=tmp_path)
    with pytest.raises(DatasetError, match="dataset: 'other' is unknown"):
        count_dataset_values("other", "site", data_dir=tmp_path)


def test_digits_have_no_attributes() -> None:
    for ask in (
        lambda: load_dataset("digits", data_dir=None, attributes=("site",)),
        lambda: count_dataset_values("digits", "site", data_dir=None),
    ):
        with pytest.raises(DatasetError, match="'digits': .*attribute 'site'.*none"):
            ask()


def test_unknown_dataset_without_a_folder_says_so() -> None:
    told = "^dataset: 'nonesuch' is unknown; .*: digits, synthetic .*data-dir is not set"
    with pytest.raises(DatasetError, match=told):
        load_dataset("nonesuch", data_dir=None, named={})


def test_unknown_dataset_gets_the_nearest_name(tmp_path: Path) -> None:
    write_npz(tmp_path / "mine.npz")
    with pytest.raises(DatasetError) as caught:
        load_dataset("mien", data_dir=tmp_path)
    told = str(caught.value)
    assert told.startswith("dataset: 'mien' is unknown; did you mean 'mine'? ")
    assert f": digits, synthetic, mine, {', '.join(NAMED)} (" in told
    assert told.endswith(f"NAME.npz in {tmp_path})")
    with pytest.raises(DatasetError, match=r"'croa' is unknown; did you mean 'cora'\?"):
        load_dataset("croa", data_dir=tmp_path)


def test_dataset_is_a_name_in_a_folder_or_a_path(tmp_path: Path) -> None:
    write_npz(tmp_path / "cora.npz")
    (tmp_path / "inner").mkdir()
    with pytest.raises(ConfigurationError, match=r"data-dir: cannot be given with .*'\.\./cora'"):
        load_dataset("../cora", data_dir=tmp_path / "inner")


def test_absent_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=r"data-dir: .*absent is not a folder"):
        load_dataset("cora", data_dir=tmp_path / "absent")
    with pytest.raises(DatasetError, match=r"data-dir: .*absent is not a folder"):
        list_datasets(tmp_path / "absent")


def test_list_datasets_describes_what_there_is(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_npz(tmp_path / "mine.npz")
    write_npz(tmp_path / "another.npz", train_mask=None, val_mask=None, test_mask=None)
    (tmp_path / "broken.npz").write_bytes(b"nothing")
    with caplog.at_level(logging.WARNING):
        digits, *synthetic, another, mine = list_datasets(tmp_path, named={})
    assert (digits.name, digits.place) == ("digits", "built in")
    assert (digits.nodes, digits.edges, digits.split) == (1797, 9929, "none")
    assert [info.name for info in synthetic] == [
        *("synthetic", "synthetic:reddit", "synthetic:products")
    ]
    assert mine == DatasetInfo(
        name="mine",
        nodes=4,
        edges=3,
        features=2,
        classes=2,
        split="1/1/1",
        place="here",
        source=str(tmp_path / "mine.npz"),
    )
    assert (another.name, another.split) == ("another", "none")
    assert "broken.npz: not a .npz file" in caplog.text


def test_list_datasets_says_where_the_public_ones_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    places = {info.name: info.place for info in list_datasets(None)}
    assert next(iter(places)) == "digits"
    assert places["cora"] == "download"
    assert places["fb100_union8"] == "by hand"
    assert set(places) >= set(NAMED)
    (tmp_path / "cache" / "retexo-fl").mkdir(parents=True)
    write_npz(tmp_path / "cache" / "retexo-fl" / "cora.npz")
    write_npz(tmp_path / "pubmed.npz")
    infos = list_datasets(tmp_path)
    here = {info.name: (info.nodes, info.source) for info in infos if info.place == "here"}
    assert here == {
        "pubmed": (4, str(tmp_path / "pubmed.npz")),
        "cora": (4, str(tmp_path / "cache" / "retexo-fl" / "cora.npz")),
    }
    assert len({info.name for info in infos}) == len(infos)


def test_citeseer_gives_back_labels_that_its_loaders_made_up(tmp_path: Path) -> None:
    sparse = {
        "x": None,
        "x_indptr": np.array([0, 1, 1, 1, 2], dtype=np.int32),
        "x_indices": np.array([0, 1], dtype=np.int32),
        "x_data": np.ones(2, dtype=np.float32),
        "x_shape": np.array([4, 2]),
    }
    for name in ("citeseer", "other"):
        write_npz(
            tmp_path / f"{name}.npz", **sparse, val_mask=np.array([False, False, False, True])
        )
    # Nodes 1 and 2 have no features; node 2 is in the test mask.
    assert SMALL["test_mask"].tolist() == [False, False, True, False]
    assert load_dataset("other", data_dir=tmp_path).labels.tolist() == [0, 1, 0, 1]
    assert load_dataset("citeseer", data_dir=tmp_path).labels.tolist() == [0, -1, 0, 1]


def test_citeseer_without_a_split_is_left_as_it_is(tmp_path: Path) -> None:
    write_npz(tmp_path / "citeseer.npz", train_mask=None, val_mask=None, test_mask=None)
    assert load_dataset("citeseer", data_dir=tmp_path).labels.tolist() == [0, 1, 0, 1]
