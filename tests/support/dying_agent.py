"""The program `retexo`, but its agent is killed once at each step that a file names.

Run as ``python -m tests.support.dying_agent agent run --config FILE``, with a file ``steps`` beside
FILE: a step in each line, ``MESSAGE begins`` or ``MESSAGE kept NAME``, after a note of that name is
on disk. Each step is taken out of the file at its death. What is killed begins again at once, as
systemd would have it; everything is imported in the parent, so that this takes no time.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from pathlib import Path
from typing import Any

import retexo_fl.agent.process  # noqa: F401
from retexo_fl.agent.job import AgentJob
from retexo_fl.cli import main
from retexo_fl.client.store import FolderStore

_PR_SET_PDEATHSIG = 1


def die_at_steps(path: Path) -> None:
    """Have this process killed at the steps of a file."""
    begin, put = AgentJob.begin, FolderStore.put_note
    message = ""

    def pass_step(step: str) -> None:
        left = path.read_text().splitlines()
        if step in left:
            left.remove(step)
            path.write_text("\n".join(left))
            os.kill(os.getpid(), signal.SIGKILL)

    def watched_begin(self: AgentJob, request: Any) -> None:
        nonlocal message
        message = request.message
        pass_step(f"{message} begins")
        begin(self, request)

    def watched_put(self: FolderStore, name: str, content: bytes) -> None:
        put(self, name, content)
        pass_step(f"{message} kept {name}")

    AgentJob.begin = watched_begin  # type: ignore[method-assign]
    FolderStore.put_note = watched_put  # type: ignore[method-assign]


def run() -> None:
    """Run the program in a child, and again whenever that is killed."""
    steps = Path(sys.argv[-1]).with_name("steps")
    while True:
        child = os.fork()
        if child == 0:
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            die_at_steps(steps)
            main()
        status = os.waitpid(child, 0)[1]
        if not os.WIFSIGNALED(status):
            sys.exit(os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    run()
