from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.sparse import csr_array

from retexo_fl.client.store import ClientStore, FolderStore, MemoryStore, SharedWeights
from retexo_fl.errors import CheckpointError

DIGEST = b"d" * 32


@pytest.fixture(params=["memory", "folder", "worker"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ClientStore:
    if request.param == "memory":
        return MemoryStore()
    held = SharedWeights(tmp_path / "held") if request.param == "worker" else None
    return FolderStore(tmp_path / "store", held=held)


def test_new_store_knows_nothing(store: ClientStore) -> None:
    assert store.book.attempt == 0
    assert store.rows(1, DIGEST) is None
    assert store.missing_peers(1, DIGEST) is None


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_store_returns_what_was_put(store: ClientStore, dtype: str) -> None:
    rows = np.arange(6, dtype=dtype).reshape(3, 2)
    store.put_rows(1, DIGEST, rows)
    store.close_exchange(1, DIGEST, (2, 5))
    kept = store.rows(1, DIGEST)
    assert kept is not None
    np.testing.assert_array_equal(kept, rows)
    assert kept.dtype == dtype
    assert store.missing_peers(1, DIGEST) == (2, 5)
    assert store.rows(1, b"e" * 32) is None
    assert store.missing_peers(2, DIGEST) is None
    store.put_weights(1, DIGEST, rows[0])
    weights = store.weights(1, DIGEST)
    assert weights is not None
    np.testing.assert_array_equal(weights, rows[0])
    assert store.weights(2, DIGEST) is None


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_sparse_rows_stay_sparse(store: ClientStore, dtype: str) -> None:
    # A row, and the last column, without any value.
    rows = csr_array(np.array([[0, 2.5, 0], [0, 0, 0], [-1, 4, 0]], dtype=dtype))
    store.put_rows(1, DIGEST, rows)
    kept = store.rows(1, DIGEST)
    assert isinstance(kept, csr_array)
    assert (kept.shape, kept.dtype) == (rows.shape, dtype)
    np.testing.assert_array_equal(kept.toarray(), rows.toarray())
    store.forget()
    assert store.rows(1, DIGEST) is None


def test_folder_store_never_returns_altered_sparse_rows(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    store.put_rows(1, DIGEST, csr_array(np.eye(3)))
    (path,) = tmp_path.glob("*.npz")
    whole = path.read_bytes()
    for place in range(0, len(whole), 7):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
        with pytest.raises(CheckpointError, match=f"{path}: damaged"):
            store.rows(1, DIGEST)
        assert store.rows(1, DIGEST) is None


@pytest.mark.parametrize(
    "changed",
    [{"indices": [9]}, {"indptr": [0, 2]}, {"shape": [1]}, {"data": [1]}, {"data": ["a"]}],
    ids=str,
)
def test_sparse_rows_that_are_none_are_damaged(tmp_path: Path, changed: dict[str, Any]) -> None:
    store = FolderStore(tmp_path)
    store.put_rows(1, DIGEST, csr_array(np.eye(1)))
    (path,) = tmp_path.glob("*.npz")
    with np.load(path) as file:
        np.savez(path, **{**file, **{name: np.array(value) for name, value in changed.items()}})
    path.with_name(f"{path.name}.crc32").write_text(f"{zlib.crc32(path.read_bytes()):08x}")
    with pytest.raises(CheckpointError, match=f"{path}: damaged"):
        store.rows(1, DIGEST)


def test_forget_drops_rows_and_closings(store: ClientStore) -> None:
    store.put_rows(1, DIGEST, np.zeros((1, 1)))
    store.put_weights(1, DIGEST, np.zeros(1))
    store.close_exchange(1, DIGEST, ())
    store.forget()
    assert store.weights(1, DIGEST) is None
    assert store.rows(1, DIGEST) is None
    assert store.missing_peers(1, DIGEST) is None


def test_the_last_weights_of_a_stage_are_held(store: ClientStore) -> None:
    names = [bytes([number] * 8) for number in range(5)]

    def held(stage: int) -> list[float]:
        found = [store.held_weights(stage, name) for name in names]
        return [float(weights[0]) for weights in found if weights is not None]

    for number, name in enumerate(names):
        store.hold_weights(0, name, np.full(3, number, np.float32), most=3)
    assert held(0) == [2, 3, 4]
    # Held again, they are the last.
    store.hold_weights(0, names[2], np.full(3, 2, np.float32), most=3)
    store.hold_weights(0, names[0], np.full(3, 0, np.float32), most=3)
    assert held(0) == [0, 2, 4]
    store.hold_weights(1, names[1], np.full(3, 1, np.float32), most=3)
    assert (held(0), held(1)) == ([], [1])
    store.forget()
    assert held(1) == []


def test_clients_of_all_processes_hold_one_copy_of_weights(tmp_path: Path) -> None:
    here, there = (SharedWeights(tmp_path / "held") for _ in range(2))
    clients = [FolderStore(tmp_path / f"{number}", held=here) for number in range(3)]
    for round_number in range(4):
        weights = np.full(5, round_number, np.float32)
        for client in clients:
            client.hold_weights(1, b"round-%d" % round_number, weights, most=2)
    assert not any((tmp_path / f"{number}").exists() for number in range(3))
    assert len([*(tmp_path / "held").glob("held-*.npy")]) == 2
    for store in (clients[0], FolderStore(tmp_path / "0", held=there)):
        found = store.held_weights(1, b"round-2")
        assert found is not None
        assert found[0] == 2
        assert store.held_weights(1, b"round-1") is None


def test_damaged_weights_are_as_good_as_none(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    store.hold_weights(0, b"12345678", np.ones(3), most=2)
    (path,) = tmp_path.glob("held-*.npy")
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    assert store.held_weights(0, b"12345678") is None


def test_folder_store_outlives_its_object(tmp_path: Path) -> None:
    FolderStore(tmp_path).put_rows(0, DIGEST, np.ones((2, 2)))
    kept = FolderStore(tmp_path).rows(0, DIGEST)
    assert kept is not None
    assert kept.tolist() == [[1, 1], [1, 1]]


def test_folder_store_names_damaged_rows(tmp_path: Path) -> None:
    FolderStore(tmp_path).put_rows(0, DIGEST, np.ones((2, 2)))
    (path,) = tmp_path.glob("*.npy")
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(CheckpointError, match=r"stage-0-\w+\.npy: damaged"):
        FolderStore(tmp_path).rows(0, DIGEST)


def test_folder_store_never_returns_altered_rows(tmp_path: Path) -> None:
    store, rows = FolderStore(tmp_path), np.arange(6, dtype=np.float32).reshape(3, 2)
    store.put_rows(1, DIGEST, rows)
    (path,) = tmp_path.glob("*.npy")
    whole = path.read_bytes()
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
        with pytest.raises(CheckpointError, match=f"{path}: damaged"):
            store.rows(1, DIGEST)
        # Not there any more, so that the client makes them again.
        assert store.rows(1, DIGEST) is None
    store.put_rows(1, DIGEST, rows)
    next(tmp_path.glob("*.crc32")).unlink()
    with pytest.raises(CheckpointError, match="damaged"):
        store.rows(1, DIGEST)


@pytest.mark.parametrize("left", [b"", bytes(200)])
def test_folder_store_names_what_a_power_cut_left(tmp_path: Path, left: bytes) -> None:
    store = FolderStore(tmp_path)
    store.put_rows(0, DIGEST, np.ones((2, 2)))
    store.close_exchange(0, DIGEST, ())
    for path in tmp_path.iterdir():
        path.write_bytes(left)
    with pytest.raises(CheckpointError, match=r"stage-0-\w+\.npy: damaged"):
        store.rows(0, DIGEST)
    with pytest.raises(CheckpointError, match=r"exchange 0 .*damaged"):
        store.missing_peers(0, DIGEST)


@pytest.mark.parametrize("text", ["7", "null", "[[]]", "[-1]", "[true]", "{}", "[" * 10**5])
def test_folder_store_names_an_end_that_it_did_not_write(tmp_path: Path, text: str) -> None:
    store = FolderStore(tmp_path)
    store.close_exchange(0, DIGEST, (1,))
    (path,) = tmp_path.iterdir()
    path.write_text(text)
    with pytest.raises(CheckpointError, match="exchange 0 .*damaged"):
        store.missing_peers(0, DIGEST)


@pytest.mark.parametrize(
    "rows",
    [np.zeros(3), np.zeros((2, 2), np.int32), np.zeros((0,), [("a", "<f4")])],
)
def test_folder_store_names_rows_that_it_did_not_write(tmp_path: Path, rows: np.ndarray) -> None:
    store = FolderStore(tmp_path)
    store.put_rows(0, DIGEST, rows)
    with pytest.raises(CheckpointError, match=r"stage-0-.*damaged .*expected rows of floats"):
        store.rows(0, DIGEST)


def test_folder_store_names_files_that_cannot_be_read(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    store.book.begin("job", 1, client=0)
    store.put_rows(0, DIGEST, np.ones((2, 2)))
    store.close_exchange(0, DIGEST, ())
    for path in list(tmp_path.iterdir()):
        path.unlink()
        path.mkdir()
    for read in (
        store.book.read,
        lambda: store.rows(0, DIGEST),
        lambda: store.missing_peers(0, DIGEST),
    ):
        with pytest.raises(CheckpointError, match="cannot be read"):
            read()


@pytest.mark.parametrize(("durable", "forced"), [(True, 8), (False, 0)])
def test_folder_store_forces_files_to_the_disk_where_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, durable: bool, forced: int
) -> None:
    seen: list[int] = []
    monkeypatch.setattr("os.fsync", seen.append)
    store = FolderStore(tmp_path, durable=durable)
    store.book.begin("job", 1, client=0)
    store.put_rows(0, DIGEST, np.ones((2, 2)))
    store.close_exchange(0, DIGEST, ())
    # Each file, and the folder that has its name.
    assert len(seen) == forced
