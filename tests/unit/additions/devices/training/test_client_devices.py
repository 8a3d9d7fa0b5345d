from __future__ import annotations

import re

import numpy as np
import pytest

from retexo_fl.additions.devices.trainers import devices_told
from retexo_fl.additions.devices.training.client_devices import ClientDevices
from retexo_fl.config import make_config
from retexo_fl.device_names import Machine
from retexo_fl.errors import ConfigurationError
from tests.support.device_tasks import Scale, make_row_sums

pytestmark = pytest.mark.usefixtures("forked_workers")

ROWS = {"rows": np.ones((4, 3))}


def opened(devices: ClientDevices) -> None:
    devices.open(make_row_sums, ROWS, Scale(), num_weights=3, dtype=np.dtype(np.float64))


def test_clients_of_a_process_share_workers_until_the_last_ends() -> None:
    one, other = (ClientDevices("cpu:1", threads=1) for _ in range(2))
    try:
        opened(one)
        opened(other)
        (process,) = one.process_ids
        assert other.process_ids == (process,)
        one.close()
        assert one.process_ids == ()
        assert other.process_ids == (process,)
        one.close()
        assert other.process_ids == (process,)
        held = other._held
        assert held is not None
        other.close()
        assert held.process_ids == ()
        opened(one)
        assert one.process_ids not in {(), (process,)}
    finally:
        one.close()
        other.close()


def test_the_process_itself_needs_no_worker() -> None:
    devices = ClientDevices("cpu", threads=1)
    assert devices.in_process
    assert devices.num_workers == 1
    opened(devices)
    assert devices.process_ids == ()
    devices.close()


def test_what_is_not_there_is_said_and_done_without(monkeypatch: pytest.MonkeyPatch) -> None:
    bare = Machine(num_gpus=0, num_cores=2, why_no_gpu="PyTorch sees no GPU")
    monkeypatch.setattr(Machine, "here", lambda: bare)
    devices = ClientDevices("cuda:0", threads=1)
    assert devices.in_process
    assert re.fullmatch(
        r"devices: cuda:0 .*\(PyTorch sees no GPU\); training on cpu", devices.settled.sentence
    )


def test_cpus_alone_are_chosen_without_a_look_for_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Machine, "here", lambda: pytest.fail("looked"))
    assert ClientDevices("cpu", threads=1).in_process
    assert ClientDevices("cpu:3", threads=1).num_workers == 3


def test_a_device_named_twice_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="expected each GPU once"):
        ClientDevices("cuda:0,cuda:0", threads=1)


@pytest.mark.parametrize(("devices", "told"), [("auto", "cpu"), ("cpu:2", "cpu:2")])
def test_a_run_says_what_it_samples_on(
    monkeypatch: pytest.MonkeyPatch, devices: str, told: str
) -> None:
    machine = Machine(num_gpus=0, num_cores=4, why_no_gpu="none here")
    monkeypatch.setattr(Machine, "here", lambda: machine)
    config = make_config({"algorithm": "drop", "sampler": "neighbour", "devices": devices})
    assert devices_told(config) == f"devices: training on {told}"
