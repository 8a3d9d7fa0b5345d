"""Array files that lie about themselves."""

from __future__ import annotations

import io
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest

from retexo_fl.errors import DatasetError, PartitionError
from retexo_fl.graph.npy import MAPPED_FROM_BYTES, open_npy, open_npz


def npy_bytes(values: np.ndarray, *, claimed: str | None = None) -> bytes:
    """Return a .npy file; ``claimed`` replaces the shape in its header by text of any length."""
    buffer = io.BytesIO()
    np.save(buffer, values, allow_pickle=True)
    content = buffer.getvalue()
    if claimed is None:
        return content
    length = struct.unpack("<H", content[8:10])[0]
    header = content[10 : 10 + length].decode("ascii").strip()
    changed = header.replace(str(values.shape), claimed).encode("ascii")
    return content[:8] + struct.pack("<H", len(changed)) + changed + content[10 + length :]


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("rows", [0, 3, MAPPED_FROM_BYTES // 16 + 1])
def test_open_npy_returns_what_was_saved(tmp_path: Path, rows: int, order: str) -> None:
    values = np.arange(rows * 2, dtype=np.float64).reshape(rows, 2)
    path = tmp_path / "a.npy"
    np.save(path, np.asarray(values, order=order))  # type: ignore[call-overload]
    found = open_npy(path, error=PartitionError)
    np.testing.assert_array_equal(found, values)
    assert type(found) is np.ndarray
    assert not found.flags.writeable
    assert isinstance(found.base, np.memmap) == (values.nbytes >= MAPPED_FROM_BYTES)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (npy_bytes(np.arange(3.0), claimed="(10000000000,)"), "expected 80000000"),
        (npy_bytes(np.arange(3.0), claimed="(2,)"), "expected"),
        (npy_bytes(np.arange(3.0), claimed="(-3,)"), "expected"),
        (npy_bytes(np.arange(3.0), claimed="(-1, -3)"), "expected"),
        (npy_bytes(np.arange(3.0), claimed="__import__('os')"), "not an array in NumPy's format"),
        (npy_bytes(np.arange(3.0), claimed="(3,"), "not an array in NumPy's format"),
        (npy_bytes(np.arange(3.0), claimed="(3,)}\n  x\n y"), "not an array in NumPy's format"),
        # What NumPy makes of a literal fails in many ways.
        (npy_bytes(np.arange(3.0)).replace(b"'<f8'", b"1.5  "), "not an array in NumPy's format"),
        (npy_bytes(np.arange(3.0)).replace(b"'<f8'", b"[()] "), "not an array in NumPy's format"),
        (npy_bytes(np.arange(3.0), claimed="(" + "-" * 9000), "not an array in NumPy's format"),
        (npy_bytes(np.arange(3.0), claimed="[" * 300), "not an array in NumPy's format"),
        (npy_bytes(np.arange(3.0)).replace(b"'<f8'", b"'|V0'"), "dimensions of |V0; expected an"),
        (npy_bytes(np.arange(3.0), claimed=f"({'9' * 4000},) * 9"), "not an array in NumPy's form"),
        (npy_bytes(np.arange(3.0), claimed=f"(0, {'9' * 40},)"), "2 dimensions of float64; expec"),
        (npy_bytes(np.arange(0.0), claimed=f"({'0, ' * 65})"), "65 dimensions of float64; expec"),
        (npy_bytes(np.arange(1.0), claimed="(True,)"), "1 dimensions of float64; expected an arr"),
        (
            npy_bytes(np.arange(3.0))[:6] + b"\x02\x00\xff\xff\xff\xff" + bytes(99),
            "a header of 4294967295 bytes; expected 10000 at most",
        ),
        (npy_bytes(np.arange(3.0))[:-1], "151 bytes; expected 152"),
        (npy_bytes(np.arange(3.0))[:50], "not an array in NumPy's format"),
        (npy_bytes(np.array([None])), "holds Python objects; expected plain values"),
        (b"", "not an array in NumPy's format"),
        (b"text, and more than a header's length of it" * 4, "not an array in NumPy's format"),
        (b"\x93NUMPY\x09\x00" + npy_bytes(np.arange(3.0))[8:], "version (9, 0); expected 1.0 or"),
    ],
)
def test_open_npy_refuses_before_it_allocates(
    tmp_path: Path, content: bytes, sentence: str
) -> None:
    path = tmp_path / "a.npy"
    path.write_bytes(content)
    with pytest.raises(PartitionError) as caught:
        open_npy(path, error=PartitionError)
    assert str(caught.value).startswith(f"{path}: ")
    assert sentence in str(caught.value)


def test_open_npy_names_an_absent_file(tmp_path: Path) -> None:
    with pytest.raises(PartitionError, match=r"a\.npy: cannot be read \(No such file"):
        open_npy(tmp_path / "a.npy", error=PartitionError)


def _read(path: Path, name: str) -> np.ndarray:
    with open_npz(path, error=DatasetError) as archive:
        return archive.read(name)


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_open_npz_refuses_a_header_larger_than_its_member(tmp_path: Path, compression: int) -> None:
    path = tmp_path / "a.npz"
    with zipfile.ZipFile(path, "w", compression) as archive:
        archive.writestr("y.npy", npy_bytes(np.arange(3.0), claimed="(10000000000,)"))
    with pytest.raises(DatasetError, match=r"a\.npz: y: .* bytes; expected 80000000"):
        _read(path, "y")


def test_open_npz_refuses_what_python_cannot_unpack(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, y=np.arange(100))
    content = path.read_bytes()
    entry = content.index(b"PK\x01\x02")
    # Version needed to extract; flags that say UTF-8, and a name that is not (APPNOTE 4.3.12).
    version = content[: entry + 6] + b"\xff" + content[entry + 7 :]
    name = content[: entry + 8] + b"\x00\x08" + content[entry + 10 :].replace(b"y.npy", b"\xff.npy")
    for damaged in (version, name):
        path.write_bytes(damaged)
        with pytest.raises(DatasetError, match=r"a\.npz: not a \.npz file, or damaged \("):
            _read(path, "y")


def test_open_npz_refuses_damaged_members(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, y=np.arange(100))
    content = bytearray(path.read_bytes())
    content[400] ^= 0xFF  # in the data: the checksum no longer fits
    path.write_bytes(content)
    with pytest.raises(DatasetError, match=r"a\.npz: y: damaged \(Bad CRC-32"):
        _read(path, "y")


def test_open_npz_refuses_a_member_shorter_than_announced(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    values = npy_bytes(np.arange(100))
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("y.npy", values[:-80])
    content = path.read_bytes()
    # The directory at the end claims the whole size; the bytes are not there.
    at = content.rfind(b"PK\x01\x02")
    claimed = content[: at + 24] + struct.pack("<L", len(values)) + content[at + 28 :]
    path.write_bytes(claimed)
    with pytest.raises(DatasetError, match=r"a\.npz: y: "):
        _read(path, "y")


def test_open_npz_refuses_an_encrypted_member(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, y=np.arange(3))
    content = bytearray(path.read_bytes())
    for mark, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        content[content.rfind(mark) + offset] |= 1
    path.write_bytes(content)
    with pytest.raises(DatasetError, match=r"a\.npz: y: damaged \(File .* is encrypted"):
        _read(path, "y")


def test_open_npz_refuses_what_is_no_archive(tmp_path: Path) -> None:
    (tmp_path / "a.npz").write_bytes(b"PK and nothing else")
    with pytest.raises(DatasetError, match=r"a\.npz: not a \.npz file, or damaged"):
        _read(tmp_path / "a.npz", "y")
    with pytest.raises(DatasetError, match=r"b\.npz: cannot be read \(No such file"):
        _read(tmp_path / "b.npz", "y")


def test_open_npz_reads_headers_alone(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez_compressed(path, y=np.zeros((5, 2), dtype=np.int16))
    with open_npz(path, error=DatasetError) as archive:
        assert archive.names == {"y"}
        header = archive.header("y")
    assert (header.shape, header.dtype, header.data_bytes) == ((5, 2), np.dtype("i2"), 20)


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_open_npz_refuses_methods_that_unpack_without_bound(tmp_path: Path, method: int) -> None:
    path = tmp_path / "a.npz"
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.writestr("y.npy", npy_bytes(np.zeros(5)))
    with pytest.raises(DatasetError, match=rf"y: compressed by method {method}; expected none or"):
        _read(path, "y")


def test_open_npz_reads_an_array_in_pieces(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    values = np.arange(300_001, dtype=np.float64)
    np.savez_compressed(path, y=values, none=np.zeros(0))
    with open_npz(path, error=DatasetError) as archive:
        pieces = list(archive.chunks("y"))
        assert list(archive.chunks("none")) == []
    assert [piece.nbytes for piece in pieces] == [2**20, 2**20, values.nbytes - 2**21]
    np.testing.assert_array_equal(np.concatenate(pieces), values)
