"""Tests that run in the guest: pytest there, its verdicts here."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from xml.etree import ElementTree

from tests.support.bluetooth_vm.guest_python import REPOSITORY, GuestPython
from tests.support.bluetooth_vm.machine import GuestEnd, GuestFailed, Machine, shared_folder
from tests.support.bluetooth_vm.prepared import prepared

GUEST_TESTS = REPOSITORY / "tests" / "guest"
_REPORT = "report.xml"
#: As strict as here, and nothing of what slows the start down.
_PYTEST = (
    "-m pytest -c /dev/null --import-mode=importlib --noconftest -p no:cacheprovider "
    "-p pytest_timeout -W error -W default::pytest.PytestUnraisableExceptionWarning "
    # Raised inside typer.
    '-W "ignore:\'click.:DeprecationWarning" '
    "--durations=0 -v"
)
_TAIL = 4000


@dataclass(frozen=True, slots=True, kw_only=True)
class GuestTests:
    """Tests of one start of the guest.

    Attributes:
        files: Names in ``tests/guest``, or ``FILE::TEST``.
        python: Runs them.
        has_bluetoothd: Whether D-Bus and BlueZ run beside them.
        test_s: After so long a test has failed.
        machine: The guest.
    """

    files: Sequence[str]
    python: GuestPython
    has_bluetoothd: bool = False
    test_s: float = 150.0
    machine: Machine = field(default_factory=Machine)

    def run(self) -> GuestVerdict:
        """Boot, run all, and return what became of them.

        Raises:
            GuestFailed: The guest or pytest reported nothing.
        """
        with shared_folder() as shared:
            end = self.machine.run(self._script(), shared)
            report = shared / _REPORT
            if not report.exists():
                raise GuestFailed(
                    f"guest: no report, exit code {end.status}\n{end.output[-_TAIL:]}"
                )
            return GuestVerdict(
                python=self.python.says, end=end, tests=outcomes(report.read_text())
            )

    def _script(self) -> str:
        python = self.python
        variables = {**python.environment(), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        command = [
            *(f"{name}={shlex.quote(value)}" for name, value in variables.items()),
            shlex.quote(str(python.program)),
            _PYTEST,
            f"--rootdir={shlex.quote(str(REPOSITORY))} --timeout={self.test_s:g}",
            f"--junitxml=/out/{_REPORT}",
            *(shlex.quote(str(GUEST_TESTS / file)) for file in self.files),
        ]
        return prepared(
            f"{python.script}\n{' '.join(command)}",
            folder=REPOSITORY,
            has_bluetoothd=self.has_bluetoothd,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GuestVerdict:
    """What became of the guest's tests.

    Attributes:
        python: What ran them.
        end: The guest's own end.
        tests: By test: nothing if it passed, or why not.
    """

    python: str
    end: GuestEnd
    tests: Mapping[str, str]

    def check(self, *expected: str) -> None:
        """Fail with what the guest said unless all have passed, and all of ``expected`` have run.

        Args:
            expected: Parts of the tests' names.
        """
        said = f"{self.python}, {self.end.wall_s:.0f} s in the guest"
        failed = [f"---- {name}\n{why}" for name, why in self.tests.items() if why]
        missing = [part for part in expected if not any(part in name for name in self.tests)]
        assert not failed, f"{said}: {len(failed)} failed\n" + "\n".join(failed)
        assert not missing, f"{said}: did not run {missing}, but {sorted(self.tests)}"
        assert self.end.status == 0, f"{said}: {self.end.output[-_TAIL:]}"


def outcomes(report: str) -> dict[str, str]:
    """Return the tests of a report; one that was skipped has not passed."""
    outcomes = {}
    # It was written by our own pytest.
    for case in ElementTree.fromstring(report).iter("testcase"):  # noqa: S314
        name = f"{case.get('classname', '')}::{case.get('name', '')}"
        bad = [part for part in case if part.tag in ("failure", "error", "skipped")]
        outcomes[name] = "\n".join(
            f"{part.tag}: {part.get('message', '')}\n{part.text or ''}" for part in bad
        )
    return outcomes
