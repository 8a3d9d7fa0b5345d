from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save, save_file

from retexo_fl.errors import CheckpointError
from retexo_fl.federation import layer_files
from retexo_fl.federation.checkpoints import checksum
from retexo_fl.federation.layer_files import LayerFacts, read_layer_file, write_layer_file

FACTS = LayerFacts(stage=1, features=7, classes=3)
TENSORS: dict[str, np.ndarray] = {
    "layer.weight": np.arange(6, dtype=np.float32).reshape(2, 3),
    "norm.bias": np.ones(2),
}


def test_read_returns_what_was_written(tmp_path: Path) -> None:
    path = tmp_path / "model" / "layer-1.safetensors"
    write_layer_file(path, FACTS, TENSORS)
    facts, tensors = read_layer_file(path)
    assert facts == FACTS
    for found in (tensors, load_file(path)):
        assert found.keys() == TENSORS.keys()
        for name, expected in TENSORS.items():
            np.testing.assert_array_equal(found[name], expected)
            assert found[name].dtype == expected.dtype


def test_equal_layers_are_equal_bytes_in_every_process(tmp_path: Path) -> None:
    script = (
        "import sys, numpy as np; from pathlib import Path\n"
        "from retexo_fl.federation.layer_files import *\n"
        "write_layer_file(Path(sys.argv[1]), LayerFacts(stage=1, features=7, classes=3),\n"
        "    {'norm.bias': np.ones(2), 'layer.weight': np.float32([[0, 1, 2], [3, 4, 5]])})"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path / "other")], check=True, timeout=500)
    write_layer_file(tmp_path / "one", FACTS, TENSORS)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "other").read_bytes()


def test_read_names_any_altered_byte(tmp_path: Path) -> None:
    path = tmp_path / "layer"
    write_layer_file(path, FACTS, TENSORS)
    whole = path.read_bytes()
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
        with pytest.raises(CheckpointError, match="layer: damaged"):
            read_layer_file(path)


@pytest.mark.parametrize("kept_bytes", [0, 7, 40, 200])
def test_read_names_a_truncated_file(tmp_path: Path, kept_bytes: int) -> None:
    path = tmp_path / "layer"
    write_layer_file(path, FACTS, TENSORS)
    path.write_bytes(path.read_bytes()[:kept_bytes])
    with pytest.raises(CheckpointError, match="layer: damaged"):
        read_layer_file(path)


def test_read_refuses_other_versions_and_other_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(CheckpointError, match=r"none: cannot be read \(No such file"):
        read_layer_file(tmp_path / "none")
    save_file(TENSORS, tmp_path / "foreign")
    with pytest.raises(CheckpointError, match="foreign: damaged, or not a layer"):
        read_layer_file(tmp_path / "foreign")
    with monkeypatch.context() as patch:
        patch.setattr(layer_files, "LAYER_VERSION", 9)
        write_layer_file(tmp_path / "newer", FACTS, TENSORS)
    with pytest.raises(CheckpointError, match="newer: of another version; expected 1"):
        read_layer_file(tmp_path / "newer")


@pytest.mark.parametrize(
    "facts",
    [
        "[]",
        "null",
        "{}",
        '{"version": 1}',
        '{"version": 1, "stage": 0, "features": 7, "classes": "3"}',
        '{"version": 1, "stage": -1, "features": 7, "classes": 3}',
        '{"version": 1, "stage": 0, "features": 7, "classes": 3, "more": 1}',
        "[" * 10**5,
    ],
)
def test_read_names_facts_that_no_run_writes(tmp_path: Path, facts: str) -> None:
    path = tmp_path / "layer"
    stored = json.dumps({"facts": facts, "crc32": checksum(facts, TENSORS)})
    path.write_bytes(save(TENSORS, metadata={"retexo": stored}))
    with pytest.raises(CheckpointError, match="layer: damaged"):
        read_layer_file(path)
