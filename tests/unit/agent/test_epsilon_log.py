"""The epsilon of a part: across jobs and starts, spent before an update leaves, and refused."""

from __future__ import annotations

import math
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from retexo_fl.agent.epsilon_log import EpsilonBudget, EpsilonLog, RowEpsilonLog
from retexo_fl.client.noise import Release
from retexo_fl.client.row_noise import RowRelease
from retexo_fl.errors import CheckpointError, ConfigurationError, LocalProtocolError
from retexo_fl.gaussian_privacy import NoisedReleases, epsilon_of, mu_of

DELTA = 1e-5
JOB, OTHER_JOB = "job-0123456789ab", "job-00000000000c"
PART, OTHER_PART = "p" * 16, "o" * 16
#: Ten of it are an epsilon of 2.
MU_SQUARED = mu_of(2.0, DELTA) ** 2 / 10


#: Killed when its update may leave, and in the middle of the next line.
KILLED = """
import os, signal, sys
from pathlib import Path
from tests.unit.agent.test_epsilon_log import opened, release

for number in range(2):
    if os.fork():
        print(os.wait()[1])
        continue
    opened(Path(sys.argv[1])).enter(release(number), most=99)
    with (Path(sys.argv[1]) / "epsilon.jsonl").open("a") as file:
        file.write('{"at": 1.0, "pa')
        file.flush()
        os.kill(os.getpid(), signal.SIGKILL)
"""


def opened(state: Path, *, most: float = 2.0, part: str = PART) -> EpsilonLog:
    return EpsilonLog(state, part, EpsilonBudget(most=most, delta=DELTA), client=3)


def release(number: int, job: str = JOB) -> Release:
    return Release(
        job=job, stage=0, round=number, mu_squared=MU_SQUARED, identity=f"{job[-2:]}{number:014x}"
    )


def test_releases_of_all_jobs_and_starts_are_together_what_the_formula_says(
    tmp_path: Path,
) -> None:
    for number in range(1, 5):
        opened(tmp_path).enter(release(number), most=99)
        opened(tmp_path).enter(release(number, OTHER_JOB), most=99)
    log = opened(tmp_path)
    assert log.epsilon == pytest.approx(epsilon_of(math.sqrt(8 * MU_SQUARED), DELTA))
    # The same again, by another process, costs nothing.
    log.enter(release(2), most=99)
    opened(tmp_path).enter(release(2), most=99)
    assert opened(tmp_path).epsilon == log.epsilon
    assert opened(tmp_path, part=OTHER_PART).epsilon == 0
    opened(tmp_path, part=OTHER_PART).enter(release(1, "job-0000000000ff"), most=99)
    one = epsilon_of(math.sqrt(MU_SQUARED), DELTA)
    assert opened(tmp_path).facts == {
        **{"most": 2.0, "delta": DELTA, "part": PART},
        "spent": {PART: log.epsilon, OTHER_PART: pytest.approx(one)},
    }
    path = tmp_path / "epsilon.jsonl"
    assert len(path.read_text().splitlines()) == 9
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_beyond_the_budget_it_is_refused_by_name(tmp_path: Path) -> None:
    log = opened(tmp_path)
    for number in range(10):
        log.enter(release(number), most=99)
    expected = (
        r"client 3: its part has given away an epsilon of 2 in all jobs; expected at most 2 with "
        r"one sum more \(max-epsilon in its agent.toml\)"
    )
    for again in (log, opened(tmp_path)):
        with pytest.raises(LocalProtocolError, match=expected):
            again.enter(release(10, OTHER_JOB), most=99)
        again.enter(release(9), most=99)
    # An owner who says nothing counts, and refuses nothing.
    opened(tmp_path, most=0.0).enter(release(10, OTHER_JOB), most=99)


def test_a_job_that_would_not_fit_is_refused_before_it_begins(tmp_path: Path) -> None:
    log = opened(tmp_path)
    for number in range(5):
        log.enter(release(number), most=99)
    whole = NoisedReleases(epsilon=2.0, delta=DELTA, clip=1.0, count=10)
    half = NoisedReleases(
        epsilon=epsilon_of(math.sqrt(4.99 * MU_SQUARED), DELTA), delta=DELTA, clip=1.0, count=5
    )
    log.check_fits(OTHER_JOB, half)
    # Its own updates so far are among those that it promised.
    log.check_fits(JOB, whole)
    with pytest.raises(
        ConfigurationError, match=r"client 3: update-dp: 2, after an epsilon of 1\.3"
    ):
        log.check_fits(OTHER_JOB, whole)


def test_a_job_has_as_many_releases_as_it_promised_in_all_starts(tmp_path: Path) -> None:
    opened(tmp_path).enter(release(1), most=2)
    opened(tmp_path).enter(release(2), most=2)
    with pytest.raises(LocalProtocolError, match="2 noised sums left in this job"):
        opened(tmp_path).enter(release(3), most=2)
    opened(tmp_path).enter(release(3, OTHER_JOB), most=2)


@pytest.mark.system
def test_what_is_noted_outlives_a_process_that_is_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", KILLED, str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, check=True, text=True, timeout=500).stdout
    assert [int(status) for status in ended.split()] == 2 * [signal.SIGKILL]
    log = opened(tmp_path)
    assert log.epsilon == pytest.approx(epsilon_of(math.sqrt(2 * MU_SQUARED), DELTA))
    log.enter(release(1), most=99)
    with pytest.raises(LocalProtocolError, match="in all jobs; expected at most 0.9 with one"):
        opened(tmp_path, most=0.9).enter(release(2), most=99)


def test_what_cannot_be_noted_may_not_leave(tmp_path: Path) -> None:
    log = opened(tmp_path)
    (tmp_path / "epsilon.jsonl").mkdir()
    with pytest.raises(CheckpointError, match="epsilon.jsonl: could not be written"):
        log.enter(release(1), most=99)
    assert log.epsilon == 0


@pytest.mark.parametrize("line", ['{"at": 1}', "[]", "nonsense"])
def test_a_damaged_log_is_named(tmp_path: Path, line: str) -> None:
    (tmp_path / "epsilon.jsonl").write_text(f"{line}\n")
    with pytest.raises(CheckpointError, match="epsilon.jsonl: is damaged; expected"):
        opened(tmp_path)


# ---- rows ---------------------------------------------------------------------------------------


#: Killed when its rows may leave.
KILLED_ROWS = """
import os, signal, sys
from pathlib import Path
from tests.unit.agent.test_epsilon_log import opened_rows, told

opened_rows(Path(sys.argv[1])).enter(told("a"))
os.kill(os.getpid(), signal.SIGKILL)
"""


def opened_rows(state: Path, *, most: float = 5.0, part: str = PART) -> RowEpsilonLog:
    return RowEpsilonLog(state, part, most, client=3)


def told(name: str, job: str = JOB, epsilon: float = 2.0) -> RowRelease:
    return RowRelease(job=job, epsilon=epsilon, identity=name * 16)


def test_rows_of_all_jobs_and_starts_add_up_and_are_refused_by_name(tmp_path: Path) -> None:
    command = [sys.executable, "-c", KILLED_ROWS, str(tmp_path)]
    assert subprocess.run(command, check=False, timeout=500).returncode == -signal.SIGKILL
    opened_rows(tmp_path).enter(told("b", OTHER_JOB))
    log = opened_rows(tmp_path)
    assert log.epsilon == 4.0
    # The same again costs nothing, in whatever job.
    log.enter(told("a", OTHER_JOB))
    assert (log.epsilon, opened_rows(tmp_path, part=OTHER_PART).epsilon) == (4.0, 0.0)
    expected = (
        r"client 3: row-dp: 2, after an epsilon of 4 that its part has given away by rows in all "
        r"jobs; expected at most 5 together \(max-row-epsilon in its agent.toml\)"
    )
    with pytest.raises(LocalProtocolError, match=expected):
        log.enter(told("c", "job-third"))
    log.enter(told("c", "job-third", epsilon=1.0))
    opened_rows(tmp_path, most=0.0).enter(told("d", "job-fourth"))


def test_a_job_is_told_one_set_of_classes_in_all_starts(tmp_path: Path) -> None:
    opened_rows(tmp_path, most=0.0).enter(told("a"))
    with pytest.raises(LocalProtocolError, match="row-dp: classes of rows left in job job-0123"):
        opened_rows(tmp_path, most=0.0).enter(told("b"))


def test_a_damaged_log_of_rows_is_named(tmp_path: Path) -> None:
    (tmp_path / "row-epsilon.jsonl").write_text("[]\n")
    with pytest.raises(CheckpointError, match="row-epsilon.jsonl: is damaged; expected the noised"):
        opened_rows(tmp_path)
