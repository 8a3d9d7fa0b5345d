from __future__ import annotations

import os
import re

import pytest

from retexo_fl.device_names import (
    DeviceList,
    Machine,
    available_cores,
    cpu_workers,
    parse_devices,
    preparers_of,
    threads_of,
)
from retexo_fl.errors import ConfigurationError

NO_GPU = Machine(num_gpus=0, num_cores=2, why_no_gpu="this PyTorch has no CUDA")
TWO_GPUS = Machine(num_gpus=2, num_cores=16, why_no_gpu="PyTorch sees 2")


@pytest.mark.parametrize(
    ("text", "names", "in_process"),
    [
        ("cpu", ("cpu:0",), True),
        ("cpu:1", ("cpu:0",), False),
        ("cpu:3", ("cpu:0", "cpu:1", "cpu:2"), False),
        ("cuda", ("cuda:0",), False),
        ("cuda:1", ("cuda:1",), False),
        ("cuda:1 , cpu", ("cuda:1", "cpu:0"), False),
        ("cpu:2,cuda:0,cuda:1", ("cuda:0", "cuda:1", "cpu:0", "cpu:1"), False),
        ("auto", ("cuda:0", "cuda:1", *(f"cpu:{place}" for place in range(12))), False),
    ],
)
def test_devices_that_are_there_are_used(
    text: str, names: tuple[str, ...], in_process: bool
) -> None:
    settled = parse_devices(text).settle(TWO_GPUS)
    assert (settled.names, settled.in_process) == (names, in_process)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "expected auto, cpu, cpu:N, cuda, cuda:I, or a list such as cuda:0,cpu"),
        ("gpu", "expected auto"),
        ("cpu:", "expected auto"),
        ("cuda:-1", "expected auto"),
        ("cuda:0,", "expected auto"),
        ("cpu,auto", "auto cannot be combined"),
        ("cpu:0", "expected numbers from 1 to 256"),
        ("cpu:257", "expected numbers from 1 to 256"),
        ("cuda:256", "expected numbers from 0 to 255"),
        ("cpu,cpu", "expected cpu once, as in cpu:2"),
        ("cuda,cuda:0", "expected each GPU once"),
    ],
)
def test_unusable_devices_are_named(text: str, complaint: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse_devices(text)
    assert str(caught.value).startswith(f"devices is {text!r}; ")
    assert complaint in str(caught.value)


@pytest.mark.parametrize(
    ("text", "machine", "pattern"),
    [
        (
            "cuda:0",
            NO_GPU,
            r"devices: cuda:0 .*\(this PyTorch has no CUDA\); training on cpu",
        ),
        (
            "cuda:0,cuda:1,cpu:2",
            NO_GPU,
            r"devices: cuda:0 and cuda:1 .*\(this PyTorch has no CUDA\); training on cpu:2",
        ),
        (
            "cuda:1,cuda:4",
            TWO_GPUS,
            r"devices: cuda:4 .*\(PyTorch sees 2\); training on cuda:1",
        ),
        ("cuda:0,cpu", TWO_GPUS, "devices: training on cuda:0 and cpu"),
        ("cpu", NO_GPU, "devices: training on cpu"),
        (
            "auto",
            NO_GPU,
            r"devices: auto .*\(this PyTorch has no CUDA\); training on cpu:2",
        ),
        ("auto", TWO_GPUS, "devices: training on cuda:0, cuda:1 and cpu:12"),
        (
            "auto",
            Machine(num_gpus=1, num_cores=2, why_no_gpu=""),
            "devices: auto .*2 cores.*; training on cuda:0",
        ),
    ],
)
def test_sentence_says_what_was_chosen_and_why(text: str, machine: Machine, pattern: str) -> None:
    assert re.fullmatch(pattern, parse_devices(text).settle(machine).sentence)


@pytest.mark.parametrize(
    ("num_gpus", "num_cores", "threads", "expected"),
    [
        (0, 1, 1, 1),
        (0, 2, 1, 2),
        (0, 32, 1, 32),
        (0, 32, 5, 6),
        (0, 2, 4, 0),
        (1, 1, 1, 0),
        (1, 2, 1, 0),
        (1, 16, 1, 14),
        (4, 64, 1, 56),
        (8, 16, 1, 0),
    ],
)
def test_workers_take_all_cores_but_two_for_each_gpu(
    num_gpus: int, num_cores: int, threads: int, expected: int
) -> None:
    assert cpu_workers(num_gpus, num_cores, threads=threads) == expected
    machine = Machine(num_gpus=num_gpus, num_cores=num_cores, why_no_gpu="")
    settled = parse_devices("auto").settle(machine, threads=threads)
    # Somebody computes in any case.
    workers = expected if num_gpus else max(1, expected)
    assert len(settled.names) == num_gpus + workers
    assert settled.in_process == (not num_gpus and workers == 1)


def test_absent_gpu_alone_leaves_the_own_process() -> None:
    settled = parse_devices("cuda:3").settle(NO_GPU)
    assert settled.names == ("cpu:0",)
    assert settled.in_process


def test_this_machine_can_be_looked_at() -> None:
    here = Machine.here()
    assert here.num_cores == available_cores() <= (os.cpu_count() or 1)
    assert here.why_no_gpu
    assert DeviceList(is_auto=True).settle().names


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs Linux")
def test_cores_are_those_that_the_process_may_run_on() -> None:
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(before)})
        assert available_cores() == 1
    finally:
        os.sched_setaffinity(0, before)


@pytest.mark.parametrize(
    ("names", "num_cores", "threads", "expected"),
    [
        (("cpu:0",), 8, None, (8,)),
        (("cpu:0", "cpu:1", "cpu:2"), 8, None, (3, 3, 2)),
        (("cpu:0", "cpu:1", "cpu:2"), 2, None, (1, 1, 1)),
        (("cuda:0", "cpu:0"), 16, None, (1, 14)),
        (("cuda:0", "cuda:1"), 16, None, (1, 1)),
        (("cuda:0", "cpu:0", "cpu:1"), 16, 3, (1, 3, 3)),
    ],
)
def test_cpu_workers_divide_the_cores(
    names: tuple[str, ...], num_cores: int, threads: int | None, expected: tuple[int, ...]
) -> None:
    assert threads_of(names, num_cores=num_cores, threads=threads) == expected


@pytest.mark.parametrize(
    ("names", "num_cores", "preparers", "expected"),
    [
        (("cpu:0", "cpu:1"), 8, None, (1, 1)),
        (("cuda:0",), 1, None, (2,)),
        (("cuda:0",), 3, None, (3,)),
        (("cuda:0",), 16, None, (4,)),
        (("cuda:0", "cuda:1"), 6, None, (3, 3)),
        (("cuda:0", *(f"cpu:{place}" for place in range(14))), 16, None, (2, *[1] * 14)),
        (("cuda:0", "cpu:0"), 16, 1, (1, 1)),
    ],
)
def test_cores_on_which_nobody_computes_prepare_for_gpus(
    names: tuple[str, ...], num_cores: int, preparers: int | None, expected: tuple[int, ...]
) -> None:
    threads = threads_of(names, num_cores=num_cores, threads=1)
    found = preparers_of(names, num_cores=num_cores, threads=threads, preparers=preparers)
    assert found == expected
