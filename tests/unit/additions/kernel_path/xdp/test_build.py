"""The built objects are what their sources give, wherever they are built."""

from __future__ import annotations

from pathlib import Path

import pytest

from retexo_fl.additions.kernel_path.xdp.build import (
    CLANG_VERSION,
    build,
    clang_version,
    object_of,
    sources,
)
from retexo_fl.additions.kernel_path.xdp.libbpf import BpfObject
from tests.support.kernel import require_bpf


@pytest.mark.parametrize("source", sources(), ids=lambda source: source.name)
def test_object_is_that_of_its_source(source: Path, tmp_path: Path) -> None:
    if (version := clang_version()) is None:
        pytest.skip("needs clang and llvm-strip to rebuild the BPF objects")
    target = tmp_path / object_of(source).name
    build(source, target)
    if version == CLANG_VERSION:
        assert target.read_bytes() == object_of(source).read_bytes(), (
            "rebuild: python -m retexo_fl.additions.kernel_path.xdp.build"
        )
    else:
        require_bpf()
        with BpfObject(target) as bpf:
            bpf.load()


def test_every_source_has_an_object_without_a_local_path() -> None:
    assert sources()
    for source in sources():
        contents = object_of(source).read_bytes()
        assert contents.startswith(b"\x7fELF")
        assert str(Path.cwd()).encode() not in contents
