"""Masked sums between machines: the bits of one process, and nothing in the clear at the server."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from retexo_fl.api.plan_facts import plan_facts
from retexo_fl.client.preparation import open_parts
from retexo_fl.masking.holder import Hidden, MaskHolder
from retexo_fl.masking.label import Label
from retexo_fl.masking.streams import Sums
from tests.support.commands import program, run_command
from tests.support.deployment import Deployment
from tests.support.hosts import Hosts
from tests.support.places import host_names
from tests.support.runs import configured, events_of, model_bytes, result_of, train

pytestmark = [pytest.mark.system, pytest.mark.deployed, pytest.mark.timeout(900)]

CLIENTS = 3
KEYS: dict[str, Any] = {"layers": 1, "hidden": 8, "rounds": 2, "secure_aggregation": "masked"}
OPTIONS = ("--layers", "1", "--hidden", "8", "--rounds", "2", "--profile", "retexo")
MASKED = (*OPTIONS, "--secure-aggregation", "masked")


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """A masked training of a deployment, and the one in this process.

    Attributes:
        folder: Of the deployment.
        deployed: Its run directory; ``inline`` that of this process.
        numbers: Each client's numbers in the clear, packed, as this process had them.
    """

    folder: Path
    deployed: Path
    inline: Path
    numbers: list[bytes]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Generator[Trained]:
    folder = tmp_path_factory.mktemp("masked")
    parts = folder / "parts"
    size = ("--clients", str(CLIENTS), "--out", str(parts))
    run_command([program("retexo"), "partition", "make", "--dataset", "digits", *size], cwd=folder)
    numbers: list[bytes] = []
    with pytest.MonkeyPatch.context() as patch:
        hide = MaskHolder.hide

        def noted(self: MaskHolder, label: Label, sums: Sums) -> Hidden:
            if sums.form.narrow:
                numbers.append(sums.form.ring.pack(sums.narrow))
            return hide(self, label, sums)

        patch.setattr(MaskHolder, "hide", noted)
        inline = train(folder / "inline", partitions=str(parts), clients=CLIENTS, **KEYS)
    with Hosts(host_names(CLIENTS)) as hosts:
        deployment = Deployment(hosts, folder, parts, CLIENTS)
        deployment.agent_settings = {"require-secure-aggregation": True}
        deployment.start()
        deployment.run(folder / "run", *MASKED)
        yield Trained(folder=folder, deployed=folder / "run", inline=inline, numbers=numbers)


def test_masked_sums_between_machines_are_those_of_one_process(trained: Trained) -> None:
    assert model_bytes(trained.deployed) == model_bytes(trained.inline)
    deployed, inline = result_of(trained.deployed), result_of(trained.inline)
    assert deployed["stages"] == inline["stages"]
    assert deployed["bytes"]["payload"]["updates_up"] == inline["bytes"]["payload"]["updates_up"]
    assert events_of(trained.deployed)[-1]["event"] == "finish"
    # Machines sign their keys.
    config = configured(
        trained.folder, partitions=trained.folder / "parts", clients=CLIENTS, **KEYS
    )
    predicted = plan_facts(config, open_parts(trained.folder / "parts"))["masked"]
    masks = [run["bytes"]["payload"]["masks"] for run in (inline, deployed)]
    assert masks == [predicted["keys"], predicted["keys"] + predicted["signatures"]]


def test_the_servers_disk_holds_no_update_in_the_clear(trained: Trained) -> None:
    assert len(trained.numbers) == CLIENTS * 2
    seen = 0
    for path in trained.folder.rglob("*"):
        if path.is_file() and "client-" not in str(path.relative_to(trained.folder)):
            content = path.read_bytes()
            seen += len(content)
            assert not any(numbers[:64] in content for numbers in trained.numbers), path
    assert seen > 0
