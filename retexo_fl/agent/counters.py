"""How often this client was started, and which starts of others it has seen: against old disks.

A folder that was put back, as a virtual machine's snapshot is, says less than others remember of
it. Only if the folders of a whole cohort are put back together does nobody notice.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final, Self, TypeAlias

from retexo_fl.errors import CheckpointError, SecureAggregationRefused
from retexo_fl.files import write_whole
from retexo_fl.masking.keys import Counters

_NAME: Final = "counters.json"
_PROCESS_BYTES: Final = 8
_MOST: Final = 2**64
#: The digest of a client's certificate, with another one of which it begins at zero, and counters.
Seen: TypeAlias = tuple[bytes, Counters]


class CounterFile:
    """The counters in an agent's state folder.

    Args:
        state: The folder.
        questions: Returns how many questions the client has answered, of all jobs.
    """

    def __init__(self, state: Path, questions: Callable[[], int] = lambda: 0) -> None:
        self.path = state / _NAME
        self._questions = questions
        self._process = os.urandom(_PROCESS_BYTES)
        self._starts = 0

    @classmethod
    def begun(cls, state: Path, questions: Callable[[], int]) -> Self:
        """Count a start of this process, on the disk when this returns.

        Raises:
            CheckpointError: The file cannot be read or written, or is damaged.
        """
        made = cls(state, questions)
        starts, seen = made._read()
        made._starts = starts + 1
        made._write(made._starts, seen)
        return made

    def own(self) -> Counters:
        """Return those of this process.

        Raises:
            CheckpointError: The log of questions cannot be read.
        """
        return Counters(starts=self._starts, process=self._process, questions=self._questions())

    def remember(self, told: Mapping[int, Seen], client: int) -> None:
        """Remember what others have reported to a client; it is on the disk when this returns.

        Raises:
            SecureAggregationRefused: One reports lower counters than before.
            CheckpointError: As :meth:`begun`.
        """
        starts, seen = self._read()
        later = dict(seen)
        for other, now in told.items():
            (key, counters), before = now, seen.get(other)
            if before is not None and before[0] == key:
                _check_not_before(other, counters, before[1], client=client)
                most = max(before[1].questions, counters.questions)
                counters = replace(counters, questions=most)
            later[other] = key, counters
        if later != seen:
            self._write(starts, later)

    def reset(self, client: int) -> bool:
        """Forget what was seen of a client; return whether anything was.

        Raises:
            CheckpointError: As :meth:`begun`.
        """
        starts, seen = self._read()
        was_there = seen.pop(client, None) is not None
        if was_there:
            self._write(starts, seen)
        return was_there

    def _read(self) -> tuple[int, dict[int, Seen]]:
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:
            return 0, {}
        except OSError as error:
            raise CheckpointError(f"{self.path}: cannot be read ({error.strerror})") from error
        with suppress(
            ValueError, KeyError, TypeError, AttributeError, RecursionError, struct.error
        ):
            facts = json.loads(content)
            return _count(facts["starts"]), {
                int(client): (bytes.fromhex(key), Counters.of(bytes.fromhex(counters)))
                for client, (key, counters) in facts["members"].items()
            }
        raise CheckpointError(
            f"{self.path}: is damaged; expected how often this agent and others were started. "
            "Without it this agent begins at 1: the owners of the others run `retexo agent "
            "reset-counter` for it then"
        )

    def _write(self, starts: int, seen: Mapping[int, Seen]) -> None:
        members = {
            str(client): [key.hex(), counters.content.hex()]
            for client, (key, counters) in sorted(seen.items())
        }
        content = json.dumps({"starts": starts, "members": members}, indent=1).encode()
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_whole(self.path, [content], durable=True, private=True)
        except OSError as error:
            raise CheckpointError(
                f"{self.path}: could not be written ({error.strerror})"
            ) from error


def _count(value: object) -> int:
    if type(value) is not int or not 0 <= value < _MOST:
        raise ValueError
    return value


def _check_not_before(other: int, now: Counters, before: Counters, *, client: int) -> None:
    """Compare the counters of a client with the highest that it has reported."""
    if now.starts < before.starts:
        what = f"start {now.starts}, after start {before.starts}"
    elif now.starts == before.starts and now.process != before.process:
        what = f"another start {now.starts} than before"
    elif now.starts > before.starts and now.questions < before.questions:
        what = f"{now.questions} answered questions, after {before.questions}"
    else:
        return
    raise SecureAggregationRefused(
        f"client {client}: the masking key of client {other} tells of {what}: its state folder was "
        "put back, or the key is an old one; expected a later start. Resume the run; if that "
        f"machine was really set up anew, run `retexo agent reset-counter {other}` here"
    )
