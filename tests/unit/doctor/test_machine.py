"""What the doctor says of this very machine, and of folders and clocks."""

from __future__ import annotations

from pathlib import Path

import pytest

from retexo_fl.doctor.finding import Verdict, absent, bad, doubtful, good, worst
from retexo_fl.doctor.machine import examine_disk, examine_machine, judge_clock


def test_this_machine_can_train() -> None:
    found = {item.thing: item for item in examine_machine()}
    assert {"python", "torch", "flwr", "numpy"} <= found.keys()
    assert worst(found.values()) is Verdict.GOOD


def test_folder_that_will_be_made_is_good(tmp_path: Path) -> None:
    found = examine_disk("state", tmp_path / "a" / "b")
    assert found.verdict is not Verdict.BAD
    assert "free" in found.seen


def test_file_in_the_way_is_bad(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("")
    assert examine_disk("state", tmp_path / "state" / "deeper").verdict is Verdict.BAD


@pytest.mark.parametrize(
    ("offset_s", "verdict"),
    [
        (0.4, Verdict.GOOD),
        (-59.0, Verdict.GOOD),
        (61.0, Verdict.DOUBTFUL),
        (-7200.0, Verdict.DOUBTFUL),
        (90_000.0, Verdict.BAD),
    ],
)
def test_clock_is_judged_by_its_offset(offset_s: float, verdict: Verdict) -> None:
    assert judge_clock(offset_s).verdict is verdict


def test_worst_of_all_counts() -> None:
    findings = [good("a", ""), absent("b", ""), doubtful("c", "", "look")]
    assert worst(findings) is Verdict.DOUBTFUL
    assert worst([*findings, bad("d", "", "mend")]) is Verdict.BAD
    assert worst([]) is Verdict.GOOD
