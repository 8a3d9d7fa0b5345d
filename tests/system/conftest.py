"""Virtual machines for Bluetooth, each once for all its tests; Flower with files of its own."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Generator, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from tests.support.bluetooth_vm import (
    GuestTests,
    GuestVerdict,
    Machine,
    end_guests,
    missing_programs,
    python_with_pybluez,
    python_with_sockets,
)
from tests.support.commands import FLOWER_ENVIRONMENT, Marked, environment, search_path

_MACHINE = Machine(timeout_s=400.0)
#: Each is emulated by one core.
_AT_ONCE = 2
_ENDS_S = 850.0


def _with_pybluez() -> GuestTests:
    files = ["rfcomm_channel.py", "pybluez_service.py"]
    return GuestTests(
        files=files, python=python_with_pybluez(), has_bluetoothd=True, machine=_MACHINE
    )


def _with_bluez() -> GuestTests:
    return GuestTests(
        # The second has bluetoothd started anew, with PyBluez's old interface.
        files=["test_bluez.py", "test_found_address.py", "test_pybluez.py"],
        python=python_with_sockets(has_pybluez=True),
        has_bluetoothd=True,
        machine=_MACHINE,
    )


def _alone(*files: str) -> Callable[[], GuestTests]:
    return lambda: GuestTests(files=files, python=python_with_sockets(), machine=_MACHINE)


#: What each machine runs; those that take longest begin first.
_GUESTS: Mapping[str, Callable[[], GuestTests]] = {
    "pybluez": _with_pybluez,
    "bluez": _with_bluez,
    # Links break last: nothing that comes after it could be decided by what the kernel makes of it.
    "channel": _alone("rfcomm_channel.py", "rfcomm_presence.py", "rfcomm_broken_link.py"),
    "lost adapter": _alone("rfcomm_lost_adapter.py"),
}


@pytest.fixture(scope="session")
def _guests(request: pytest.FixtureRequest) -> Iterator[Mapping[str, Future[GuestVerdict]]]:
    """Start the machines that tests of this session ask for."""
    missing = missing_programs()
    if missing:
        pytest.skip(f"no virtual machine: needs {', '.join(missing)} (.ci/run installs them)")
    wanted = {
        item.callspec.params.get("guest")
        for item in request.session.items
        if isinstance(item, pytest.Function) and hasattr(item, "callspec")
    }
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        begun = {
            name: pool.submit(lambda make: make().run(), make)
            for name, make in _GUESTS.items()
            if name in wanted
        }
        try:
            yield begun
        finally:
            # Nobody asks for what has not begun, should the session end early.
            for future in begun.values():
                future.cancel()
            end_guests()


@pytest.fixture
def guest(
    request: pytest.FixtureRequest, _guests: Mapping[str, Future[GuestVerdict]]
) -> GuestVerdict:
    """Return what became of the tests in the machine that a test names as its parameter."""
    return _guests[request.param].result(_ENDS_S)


@pytest.fixture
def marked() -> Generator[Marked]:
    """Yield a mark, and end what bears it when the test is over."""
    mark = Marked()
    yield mark
    mark.end_all()


@pytest.fixture
def flower_environment(marked: Marked) -> Generator[dict[str, str]]:
    """Yield the documented variables, with a home and temporary files of this test alone."""
    # Ray's sockets lie deep below it and may have names of 107 characters only.
    with tempfile.TemporaryDirectory(prefix="rtx-") as place:
        places = {"FLWR_HOME": f"{place}/home", "TMPDIR": place, "RAY_TMPDIR": place}
        path = {"PATH": search_path()}
        yield environment({**FLOWER_ENVIRONMENT, **places, **path, **marked.variables})
        # Before its files are removed.
        marked.end_all()
