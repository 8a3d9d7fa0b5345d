"""An agent that is killed once at each step that a file names.

In place of ``retexo agent run --config FILE``, with a file ``steps`` beside FILE: a step in each
line, ``MESSAGE begins`` or ``MESSAGE answered``, when the answer is about to leave. Each step is
taken out of the file at its death. What is killed begins again at once, as
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
from retexo_fl.agent.jobs import AgentJobs
from retexo_fl.cli import main

_PR_SET_PDEATHSIG = 1


def die_at_steps(path: Path) -> None:
    """Have this process killed at the steps of a file."""
    begin, end = AgentJob.begin, AgentJobs.end

    def pass_step(step: str) -> None:
        left = path.read_text().splitlines()
        if step in left:
            left.remove(step)
            path.write_text("\n".join(left))
            os.kill(os.getpid(), signal.SIGKILL)

    def watched_begin(self: AgentJob, request: Any) -> None:
        pass_step(f"{request.message} begins")
        begin(self, request)

    def watched_end(self: AgentJobs, job: AgentJob, request: Any, parts: Any) -> None:
        end(self, job, request, parts)
        pass_step(f"{request.message} answered")

    AgentJob.begin = watched_begin  # type: ignore[method-assign]
    AgentJobs.end = watched_end  # type: ignore[method-assign]


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
