"""What pytest reports of a virtual machine decides here: nothing that failed is overlooked."""

from __future__ import annotations

import pytest

from tests.support.bluetooth_vm.guest_tests import GuestVerdict, outcomes
from tests.support.bluetooth_vm.machine import GuestEnd

_REPORT = """<?xml version="1.0" encoding="utf-8"?>
<testsuites><testsuite name="pytest" tests="4">
<testcase classname="tests.guest.one.TestOne" name="test_good" time="1"/>
<testcase classname="tests.guest.one" name="test_bad"><failure message="no">line 7: no</failure>
</testcase>
<testcase classname="tests.guest.one" name="test_broken"><error message="setup">line 8</error>
</testcase>
<testcase classname="tests.guest.one" name="test_left_out"><skipped message="why"/></testcase>
</testsuite></testsuites>
"""


def _verdict(tests: dict[str, str], *, status: int = 0) -> GuestVerdict:
    end = GuestEnd(status=status, output="what it said", wall_s=1.0)
    return GuestVerdict(python="a Python", end=end, tests=tests)


def test_a_report_tells_why_a_test_has_not_passed() -> None:
    tests = outcomes(_REPORT)
    assert [name.rpartition("::")[2] for name, why in tests.items() if why] == [
        "test_bad",
        "test_broken",
        "test_left_out",
    ]
    with pytest.raises(AssertionError, match="3 failed\n(.|\n)*line 7: no"):
        _verdict(tests).check("TestOne::test_good")


def test_a_test_that_did_not_run_is_missed() -> None:
    tests = {"tests.guest.one.TestOne::test_good": ""}
    _verdict(tests).check("TestOne::test_good")
    with pytest.raises(AssertionError, match="did not run"):
        _verdict(tests).check("TestOne::test_good", "test_other")


def test_an_exit_code_that_no_test_explains_is_a_failure() -> None:
    with pytest.raises(AssertionError, match="what it said"):
        _verdict({"one::test_good": ""}, status=3).check()
