"""One ``retexo`` command in a process of its own: its processor time and its peak of memory.

``python -m sims.measured_process BYTES ARGUMENT...`` runs ``retexo ARGUMENT...`` with at most so
much address space and prints what it took as one line of JSON, after whatever the command prints.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from retexo_fl.errors import EngineFailed

_KILOBYTE: Final = 1024
_STATUS: Final = Path("/proc/self/status")
#: Characters of a failing command's output that are shown.
_SHOWN: Final = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Used:
    """What a process took.

    Attributes:
        cpu_s: Processor time, of user and system.
        peak_bytes: Resident at most.
    """

    cpu_s: float
    peak_bytes: int


def measure_command(arguments: Sequence[str], *, timeout_s: float, most_bytes: int) -> Used:
    """Run ``retexo`` with arguments and say what it took.

    Args:
        arguments: Of the command.
        timeout_s: After so long it is killed.
        most_bytes: Address space that it may have.

    Raises:
        EngineFailed: It failed, or took too long.
    """
    words = [sys.executable, "-m", __name__, str(most_bytes), *arguments]
    named = f"retexo {' '.join(arguments)}"
    try:
        done = subprocess.run(
            words,
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout_s,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
    except subprocess.TimeoutExpired as error:
        raise EngineFailed(f"{named}: no end within {timeout_s:g} s") from error
    if done.returncode:
        raise EngineFailed(f"{named}: exit code {done.returncode}: {done.stderr[-_SHOWN:]}")
    return Used(**json.loads(done.stdout.splitlines()[-1]))


def _used() -> Used:
    times = resource.getrusage(resource.RUSAGE_SELF)
    # Not ru_maxrss: that begins with the peak of the process which started this one.
    peak = next(
        int(line.split()[1]) for line in _STATUS.read_text().splitlines() if "VmHWM" in line
    )
    return Used(cpu_s=times.ru_utime + times.ru_stime, peak_bytes=peak * _KILOBYTE)


def _main() -> int:
    most_bytes, *arguments = sys.argv[1:]
    resource.setrlimit(resource.RLIMIT_AS, (int(most_bytes), int(most_bytes)))
    from retexo_fl.cli import main

    sys.argv = ["retexo", *arguments]
    code = 0
    try:
        main()
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 1
    print(json.dumps(asdict(_used())))
    return code


if __name__ == "__main__":
    raise SystemExit(_main())
