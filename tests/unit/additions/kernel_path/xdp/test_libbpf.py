"""Loading through libbpf: sizes, constants, maps as memory, and errors that say what is wrong."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from retexo_fl.additions.kernel_path.xdp.aggregate import OBJECT
from retexo_fl.additions.kernel_path.xdp.libbpf import BpfObject, RingBuffer
from retexo_fl.additions.kernel_path.xdp.library import possible_cpus
from retexo_fl.errors import ChannelUnavailable
from tests.support.kernel import require_bpf


@pytest.fixture
def unloaded() -> Iterator[BpfObject]:
    require_bpf()
    with BpfObject(OBJECT) as bpf:
        yield bpf


def test_object_tells_its_programs_and_maps(unloaded: BpfObject) -> None:
    assert list(unloaded.programs) == ["aggregate"]
    assert {"acc", "seen", "slots", "streams", "regions", "counts"} < unloaded.maps.keys()
    assert unloaded.maps["acc"].value_bytes == 64


def test_memory_of_a_map_is_shared_and_outlives_the_object(unloaded: BpfObject) -> None:
    slots = unloaded.maps["slots"]
    slots.resize(7)
    unloaded.load()
    view = slots.array(np.uint64)
    assert (view.shape, slots.max_entries) == ((7,), 7)
    view[3] = 2**63 + 1
    key = (3).to_bytes(4, "little")
    assert slots.lookup(key) == (2**63 + 1).to_bytes(8, "little")
    slots.update(key, (5).to_bytes(8, "little"))
    assert view[3] == 5
    assert slots.lookup((7).to_bytes(4, "little")) is None
    unloaded.close()
    view[3] = 6
    assert view.tolist() == [0, 0, 0, 6, 0, 0, 0]


def test_values_of_another_size_are_not_seen_as_an_array(unloaded: BpfObject) -> None:
    unloaded.load()
    with pytest.raises(ValueError, match="map acc: values of 64 B"):
        unloaded.maps["acc"].array(np.uint32)


def test_key_outside_a_map_cannot_be_set(unloaded: BpfObject) -> None:
    unloaded.load()
    with pytest.raises(ChannelUnavailable, match="map slots, key 09000000: Argument list too long"):
        unloaded.maps["slots"].update((9).to_bytes(4, "little"), bytes(8))


def test_constants_are_what_the_program_was_given(unloaded: BpfObject) -> None:
    unloaded.set_constant("PORT", 7411)
    unloaded.set_constant("MAX_CELLS", 3)
    unloaded.load()
    contents = unloaded.variables(".rodata").lookup(bytes(4))
    assert contents is not None
    assert contents[:2] + contents[4:8] == (7411).to_bytes(2, "little") + (3).to_bytes(4, "little")
    with pytest.raises(KeyError):
        unloaded.set_constant("NO_SUCH", 1)


def test_empty_ring_buffer_gives_nothing(unloaded: BpfObject) -> None:
    unloaded.load()
    ring = RingBuffer(unloaded.maps["completions"])
    assert ring.consume() == []
    ring.close()
    assert ring.consume() == []


def test_refusal_ends_with_the_words_of_the_verifier(unloaded: BpfObject) -> None:
    # The loop over so many cells is longer than the verifier is willing to walk.
    unloaded.set_constant("MAX_CELLS", 2**20)
    with pytest.raises(ChannelUnavailable, match=r"load aggregate\.bpf\.o: .*processed \d+ insns"):
        unloaded.load()


def test_map_of_no_entries_is_refused_by_its_name(unloaded: BpfObject) -> None:
    unloaded.maps["seen"].resize(0)
    with pytest.raises(ChannelUnavailable, match="seen"):
        unloaded.load()


def test_file_that_is_no_object_is_named(tmp_path: Path) -> None:
    require_bpf()
    other = tmp_path / "other.bpf.o"
    other.write_bytes(b"no ELF")
    for path in (other, tmp_path / "none.bpf.o"):
        with pytest.raises(ChannelUnavailable, match=str(path)):
            BpfObject(path)


def test_frame_that_is_none_cannot_be_run(unloaded: BpfObject) -> None:
    unloaded.load()
    with pytest.raises(ChannelUnavailable, match="test run of aggregate: Invalid argument"):
        unloaded.programs["aggregate"].test_run(b"short")


def test_counts_are_kept_apart_for_every_processor() -> None:
    require_bpf()
    assert possible_cpus() >= 1
