"""The doctor's line on the kernel path: there, not there, and not there though it is wanted."""

from __future__ import annotations

import pytest

from retexo_fl.additions.kernel_path import examination
from retexo_fl.additions.kernel_path.examination import examine
from retexo_fl.additions.kernel_path.xdp.probe import probe
from retexo_fl.doctor.finding import Verdict, absent, good

_THERE = good("kernel path", "available (native/generic untested until attached)")


def test_this_machine_is_told_as_the_probe_finds_it() -> None:
    found = probe()
    expected = _THERE if found.ok else absent("kernel path", found.reason)
    assert [*examine((), ())] == [expected]


@pytest.fixture
def _without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examination, "why_no_kernel_path", lambda: "missing CAP_BPF")


@pytest.mark.usefixtures("_without")
@pytest.mark.parametrize(
    ("listen", "verdict"),
    [
        ((), Verdict.ABSENT),
        (("tcp://0.0.0.0:7411", "udp://10.0.0.1:7412"), Verdict.ABSENT),
        (("tcp://0.0.0.0:7411", "xdp://10.0.0.1:7412"), Verdict.DOUBTFUL),
        (("auto://10.0.0.1:7412",), Verdict.DOUBTFUL),
    ],
)
def test_lack_of_it_matters_where_it_is_wanted(listen: tuple[str, ...], verdict: Verdict) -> None:
    (found,) = examine(listen, ())
    assert (found.thing, found.verdict, found.seen) == ("kernel path", verdict, "missing CAP_BPF")
    assert ("CAP_PERFMON" in found.advice) == (verdict is Verdict.DOUBTFUL)
