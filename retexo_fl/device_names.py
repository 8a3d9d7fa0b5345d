"""Device lists: the key ``devices``, and which of them this machine has."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Final

from retexo_fl.errors import ConfigurationError
from retexo_fl.units import counted

EXPECTED: Final = "expected auto, cpu, cpu:N, cuda, cuda:I, or a list such as cuda:0,cpu"
#: More worker processes than this are a typing error.
MAX_CPU_WORKERS: Final = 256
MAX_GPU_NUMBER: Final = 255
#: Cores that a GPU's worker has for itself: it prepares mini-batches while the GPU computes.
CORES_OF_GPU: Final = 2
#: More threads would prepare more mini-batches ahead than a GPU should hold.
_MOST_PREPARERS: Final = 4
_ENTRY: Final = re.compile(r"(?P<kind>cpu|cuda)(?::(?P<number>\d{1,6}))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What a machine offers.

    Attributes:
        num_gpus: GPUs that PyTorch can use.
        num_cores: Cores that this process may run on.
        why_no_gpu: Why a GPU cannot be used, in a few words.
    """

    num_gpus: int
    num_cores: int
    why_no_gpu: str

    @classmethod
    def here(cls) -> Machine:
        """Look at this machine."""
        import torch

        num_gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if torch.version.cuda is None:
            why = "this PyTorch has no CUDA"
        else:
            why = "PyTorch sees no GPU" if num_gpus == 0 else f"PyTorch sees {num_gpus}"
        return cls(num_gpus=num_gpus, num_cores=available_cores(), why_no_gpu=why)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """The devices that are used.

    Attributes:
        names: One of each worker, in the order in which sums are added: ``("cuda:0", "cpu:0",
            "cpu:1")``.
        sentence: What was chosen and why, for the user.
        in_process: One CPU worker that is the client's own process: no child.
    """

    names: tuple[str, ...]
    sentence: str
    in_process: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceList:
    """The parsed key ``devices``.

    Attributes:
        gpus: Numbers of the GPUs asked for, in order.
        cpu_workers: CPU workers asked for; 0 none.
        cpu_is_own_process: The CPU worker was given without a number.
        is_auto: All that the machine has.
    """

    gpus: tuple[int, ...] = ()
    cpu_workers: int = 0
    cpu_is_own_process: bool = True
    is_auto: bool = False

    def settle(
        self,
        machine: Machine | None = None,
        *,
        threads: int = 1,
    ) -> Settled:
        """Choose what is there of it; without a GPU that was asked for, the rest, or the CPU.

        Args:
            machine: What there is; None looks, where a GPU is asked for.
            threads: Of each CPU worker that ``auto`` chooses.
        """
        if not (self.is_auto or self.gpus):
            workers = self.cpu_workers or 1
            return _settled((), workers, reason="", own_process=self.cpu_is_own_process)
        machine = Machine.here() if machine is None else machine
        if self.is_auto:
            return _automatic(machine, threads=threads)
        there = tuple(gpu for gpu in self.gpus if gpu < machine.num_gpus)
        absent = [f"cuda:{gpu}" for gpu in self.gpus if gpu >= machine.num_gpus]
        workers = self.cpu_workers if self.cpu_workers or there else 1
        reason = ""
        if absent:
            verb = "is" if len(absent) == 1 else "are"
            reason = f"{_listed(absent)} {verb} not there ({machine.why_no_gpu}); "
        return _settled(there, workers, reason=reason, own_process=self.cpu_is_own_process)


def parse_devices(text: str) -> DeviceList:
    """Read ``auto``, ``cpu``, ``cpu:N`` (N worker processes), ``cuda``, ``cuda:I`` or a list.

    ``cuda`` is the first GPU, ``cpu`` alone this process itself.

    Raises:
        ConfigurationError: It is none of these, or names a device twice.
    """
    entries = [entry.strip() for entry in text.split(",")]
    if entries == ["auto"]:
        return DeviceList(is_auto=True)
    gpus: list[int] = []
    cpu: int | None = None
    own_process = True
    for entry in entries:
        found = _ENTRY.fullmatch(entry)
        if found is None:
            alone = "auto cannot be combined with other devices; " if entry == "auto" else ""
            raise ConfigurationError(f"devices is {text!r}; {alone}{EXPECTED}")
        number = found["number"]
        if found["kind"] == "cuda":
            gpus.append(_within(text, int(number or 0), 0, MAX_GPU_NUMBER))
        elif cpu is not None:
            raise ConfigurationError(f"devices is {text!r}; expected cpu once, as in cpu:2")
        else:
            cpu = 1 if number is None else _within(text, int(number), 1, MAX_CPU_WORKERS)
            own_process = number is None
    if len(set(gpus)) < len(gpus):
        raise ConfigurationError(f"devices is {text!r}; expected each GPU once")
    return DeviceList(gpus=tuple(gpus), cpu_workers=cpu or 0, cpu_is_own_process=own_process)


def threads_of(names: tuple[str, ...], *, num_cores: int, threads: int | None) -> tuple[int, ...]:
    """Return how many threads each worker computes with.

    CPU workers divide the cores that are left when each GPU's worker has
    :data:`CORES_OF_GPU`; none gets less than one.

    Args:
        names: Of :class:`Settled`.
        num_cores: To divide.
        threads: Of each CPU worker, or None to divide.
    """
    num_cpu = sum(name.startswith("cpu") for name in names)
    left = num_cores - CORES_OF_GPU * (len(names) - num_cpu)
    each, over = divmod(max(left, num_cpu), max(num_cpu, 1))
    counts = iter(each + (place < over) for place in range(num_cpu))
    return tuple(
        (next(counts) if threads is None else threads) if name.startswith("cpu") else 1
        for name in names
    )


def preparers_of(
    names: tuple[str, ...], *, num_cores: int, threads: tuple[int, ...], preparers: int | None
) -> tuple[int, ...]:
    """Return how many threads of each worker prepare shares.

    Each GPU has its own cores for that, and its part of those on which no CPU worker computes, up
    to :data:`_MOST_PREPARERS`. A CPU worker prepares with one.

    Args:
        names: Of :class:`Settled`.
        num_cores: Of the machine.
        threads: Of :func:`threads_of`.
        preparers: Of each GPU, or None to divide.
    """
    is_gpu = [not name.startswith("cpu") for name in names]
    computing = sum(count for count, gpu in zip(threads, is_gpu, strict=True) if not gpu)
    part = (num_cores - computing) // max(1, sum(is_gpu))
    each = min(max(part, CORES_OF_GPU), _MOST_PREPARERS) if preparers is None else preparers
    return tuple(each if gpu else 1 for gpu in is_gpu)


def cpu_workers(num_gpus: int, num_cores: int, *, threads: int = 1) -> int:
    """Return how many CPU workers the cores are enough for beside the GPUs' own.

    Workers, not threads of one: sums over rows that several threads share round otherwise for each
    number of threads, while units and mini-batches are cut alike whatever computes them.

    Args:
        num_gpus: Each has :data:`CORES_OF_GPU` for itself.
        num_cores: Of the machine.
        threads: Of each worker.
    """
    return max(0, num_cores - CORES_OF_GPU * num_gpus) // threads


def available_cores() -> int:
    """Return how many cores this process may run on, which a container or taskset may narrow."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def processes_for(clients: int) -> int:
    """Return how many processes Flower's simulation has: one a core, and no more than clients."""
    return max(1, min(clients, available_cores()))


def _within(text: str, number: int, least: int, most: int) -> int:
    if not least <= number <= most:
        raise ConfigurationError(f"devices is {text!r}; expected numbers from {least} to {most}")
    return number


def _automatic(machine: Machine, *, threads: int) -> Settled:
    gpus = tuple(range(machine.num_gpus))
    spare = cpu_workers(len(gpus), machine.num_cores, threads=threads)
    workers = max(spare, 0 if gpus else 1)
    if not gpus:
        reason = f"auto found no GPU ({machine.why_no_gpu}); "
    elif not spare:
        reason = f"auto found {counted(machine.num_cores, 'core')}, none to spare; "
    else:
        reason = ""
    return _settled(gpus, workers, reason=reason, own_process=True)


def _settled(gpus: tuple[int, ...], workers: int, *, reason: str, own_process: bool) -> Settled:
    names = (*(f"cuda:{gpu}" for gpu in gpus), *(f"cpu:{place}" for place in range(workers)))
    shown = [f"cuda:{gpu}" for gpu in gpus]
    if workers:
        shown.append("cpu" if workers == 1 else f"cpu:{workers}")
    return Settled(
        names=names,
        sentence=f"devices: {reason}training on {_listed(shown)}",
        in_process=own_process and not gpus and workers == 1,
    )


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
