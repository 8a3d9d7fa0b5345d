"""Training over the kernel path, between hosts: the bits of user space, and of one process.

No silent fallback can pass: what the programs in the kernel counted is what the plan demands, and
no vector came through a socket.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from retexo_fl.additions.kernel_path.carrying.choice import LEAST_TIMES
from retexo_fl.additions.kernel_path.packets.stream_shape import StreamShape
from retexo_fl.client.preparation import make_parts
from retexo_fl.client.vector_carrier import split_layer
from retexo_fl.config import make_config
from retexo_fl.errors import ExchangeIncomplete
from retexo_fl.graph import BoundaryPlan, GraphPartition
from retexo_fl.run_log.events import Event, RoundClosed
from tests.support.agents import AgentProcess, agents, predict_with, train_with
from tests.support.commands import program
from tests.support.data import data_dir
from tests.support.hosts import Hosts
from tests.support.kernel import require_bpf
from tests.support.limits import PERMISSIVE
from tests.support.loss import BadCable, bad_cables
from tests.support.part import wait_until
from tests.support.runs import configured, model_bytes, result_of, train

pytestmark = pytest.mark.system

_TCP_PORT = 7411
_UDP_PORT = 7412
#: At an MTU of 1,500 bytes.
_PACKET_CELLS = 22
#: linux/capability.h.
_DROPPED = {"NET_ADMIN": 12, "NET_RAW": 13, "SYS_ADMIN": 21, "PERFMON": 38, "BPF": 39}
KEYS: dict[str, Any] = {"hidden": 8, "rounds": 2, "codec": "fixed"}
LEAN: dict[str, Any] = {"row-bits": 8, "update-bits": 8, "weight-bits": 8, "dropout": 0.0}


@contextmanager
def federation(
    root: Path,
    parts: Sequence[GraphPartition],
    scheme: str,
    *,
    lost: float = 0.0,
    doubled: float = 0.0,
    settings: dict[str, object] | None = None,
    start: bool = True,
    cables: list[BadCable] | None = None,
) -> Iterator[list[AgentProcess]]:
    """An agent for each part, on hosts of their own, with cables that are good or bad."""
    require_bpf()
    with ExitStack() as stack:
        hosts = list(stack.enter_context(Hosts([f"client-{part.client}" for part in parts])))
        made_cables = stack.enter_context(
            bad_cables(*hosts, udp_port=_UDP_PORT, lost=lost, doubled=doubled, with_xdp=True)
        )
        if cables is not None:
            cables.extend(made_cables)
        addresses = [
            (f"tcp://{host.address}:{_TCP_PORT}", f"{scheme}://{host.address}:{_UDP_PORT}")
            for host in hosts
        ]
        made = stack.enter_context(
            agents(
                root,
                parts,
                addresses=addresses,
                hosts=hosts,
                settings={**PERMISSIVE, **(settings or {})},
                start=start,
            )
        )
        yield made


def counters(made: Sequence[AgentProcess]) -> dict[str, int]:
    """What all agents counted."""
    told = [agent.status()["datagrams"]["counters"] for agent in made]
    return {name: sum(each[name] for each in told) for name in told[0]}


def controls(made: Sequence[AgentProcess]) -> int:
    """How many notices and grants all agents sent."""
    return sum(
        each["blocks"]
        for agent in made
        for each in agent.status()["deliveries"]
        if split_layer(each["layer"])[1]
    )


def planned_packets(
    parts: Sequence[GraphPartition], plan: str, widths: Sequence[int], *, in_bytes: bool = False
) -> int:
    """Packets of all vectors of some exchanges, each sent once."""
    plans = [BoundaryPlan.from_partition(part, plan) for part in parts]
    return sum(
        StreamShape.in_room(peer.send.count, width, _PACKET_CELLS, in_bytes=in_bytes).packets
        for each in plans
        for peer in each.peers
        for width in widths
    )


@pytest.fixture(scope="module")
def parts() -> list[GraphPartition]:
    return make_parts(make_config({**KEYS, "clients": 4}))


@pytest.fixture(scope="module")
def four(
    tmp_path_factory: pytest.TempPathFactory, parts: list[GraphPartition]
) -> Iterator[list[AgentProcess]]:
    root = tmp_path_factory.mktemp("agents")
    (root / "predictions").mkdir()
    with federation(root, parts, "xdp", settings={"predictions": "../predictions"}) as made:
        yield made


@pytest.mark.parametrize(
    ("algorithm", "plan", "more"),
    [
        ("lazy", "rows", {}),
        ("lazy", "cover", {}),
        ("lazy", "rows", LEAN),
        ("lazy", "cover", LEAN),
        ("standard", "rows", {}),
        ("standard", "cover", {}),
        ("bns", "rows", {}),
    ],
)
@pytest.mark.each_choice
def test_the_kernel_adds_what_one_process_adds(
    tmp_path: Path, four: list[AgentProcess], algorithm: str, plan: str, more: dict[str, Any]
) -> None:
    # Of a width that no other training here has: vectors of another's would be in the cache.
    keys = {
        **KEYS,
        "clients": 4,
        "hidden": 12,
        "algorithm": algorithm,
        "boundary-plan": plan,
        **more,
    }
    before = counters(four)

    train_with(four, configured(tmp_path / "agents", **keys))

    train(tmp_path / "inline", **keys)
    assert model_bytes(tmp_path / "agents") == model_bytes(tmp_path / "inline")
    found = {name: value - before[name] for name, value in counters(four).items()}
    assert found["data_new"] > 0
    assert found["socket_data"] == found["malformed"] == found["foreign"] == 0


@pytest.mark.parametrize(("more", "hidden"), [({}, 24), (LEAN, 28)])
def test_planned_packets_come_by_the_kernel_and_none_by_a_socket(
    tmp_path: Path,
    four: list[AgentProcess],
    parts: list[GraphPartition],
    more: dict[str, Any],
    hidden: int,
) -> None:
    # Of a width that no other training here has: nothing is in the cache but the input layer.
    keys = {**KEYS, "clients": 4, "boundary-plan": "cover", "model": "gcn", **more}
    keys["hidden"] = hidden
    widths = [parts[0].num_features, keys["hidden"]]
    before = counters(four)

    train_with(four, configured(tmp_path / "agents", **keys))

    found = {name: value - before[name] for name, value in counters(four).items()}
    planned = planned_packets(parts, "cover", widths, in_bytes=more == LEAN)
    assert found["data_new"] == planned
    assert found["packets_sent"] >= found["data_new"]
    assert found["socket_data"] == found["bad_checksum"] == found["malformed"] == 0
    # One wake-up for each client and exchange at most: the rest stays in the kernel.
    assert found["events"] <= 4 * len(widths)

    # The same agents; another codec goes over TCP.
    floats = {**keys, "codec": "lossless"}
    train_with(four, configured(tmp_path / "floats", **floats))
    train(tmp_path / "floats-inline", **floats)
    assert model_bytes(tmp_path / "floats") == model_bytes(tmp_path / "floats-inline")
    assert counters(four)["data_new"] == before["data_new"] + found["data_new"]


def test_no_thread_of_an_agent_keeps_what_loading_needed(four: list[AgentProcess]) -> None:
    dropped = sum(1 << number for number in _DROPPED.values())
    for agent in four:
        assert agent.process is not None
        tasks = list(Path(f"/proc/{agent.process.pid}/task").iterdir())
        assert len(tasks) > 3
        for task in tasks:
            lines = (task / "status").read_text().splitlines()
            held = {line.split()[0]: int(line.split()[1], 16) for line in lines if "Cap" in line}
            assert held["CapEff:"] & dropped == held["CapPrm:"] & dropped == 0, task


def test_a_second_prediction_sends_no_vector(tmp_path: Path, four: list[AgentProcess]) -> None:
    keys = {**KEYS, "clients": 4}
    train_with(four, configured(tmp_path / "run", **keys))
    config = configured(tmp_path / "predicted", **keys)
    before = counters(four)
    first = predict_with(four, config, tmp_path / "run")
    between = counters(four)

    second = predict_with(four, config, tmp_path / "run")

    after = counters(four)
    assert first.facts()["nodes"] == second.facts()["nodes"]
    assert after["packets_sent"] == between["packets_sent"]
    assert after["data_new"] == between["data_new"]
    assert after["cache_hits"] - between["cache_hits"] == 4 * 2
    assert between["cache_hits"] >= before["cache_hits"]


def test_standard_training_sends_the_input_layer_once(
    tmp_path: Path, four: list[AgentProcess], parts: list[GraphPartition]
) -> None:
    # Rows that no other training here sends: their degrees are in them.
    keys = {**KEYS, "clients": 4, "algorithm": "standard", "layers": 1, "rounds": 3, "model": "gcn"}
    before = counters(four)

    train_with(four, configured(tmp_path / "agents", **keys))

    found = {name: value - before[name] for name, value in counters(four).items()}
    assert found["data_new"] == planned_packets(parts, "rows", [parts[0].num_features])


def test_exchanges_that_recur_go_without_notices(tmp_path: Path, four: list[AgentProcess]) -> None:
    # Of a width that no other training here has.
    keys = {**KEYS, "clients": 4, "algorithm": "standard", "hidden": 20, "rounds": 5}
    before = counters(four)

    train_with(four, configured(tmp_path / "agents", **keys))

    found = {name: value - before[name] for name, value in counters(four).items()}
    # Whatever is announced is looked for among what is kept.
    announced = found["cache_hits"] + found["cache_misses"]
    assert 0 < 2 * announced < found["events"]
    assert found["foreign"] == found["socket_data"] == 0
    train(tmp_path / "inline", **keys)
    assert model_bytes(tmp_path / "agents") == model_bytes(tmp_path / "inline")


@pytest.mark.parametrize(("scheme", "more"), [("udp", {}), ("udp", LEAN), ("af-xdp", LEAN)])
def test_cables_that_lose_and_double_packets_change_no_bit(
    tmp_path: Path, scheme: str, more: dict[str, Any]
) -> None:
    keys = {**KEYS, "clients": 3, "boundary-plan": "cover", **more}
    parts = make_parts(make_config(keys))
    with federation(tmp_path, parts, scheme, lost=0.05, doubled=0.05) as made:
        train_with(made, configured(tmp_path / "agents", **keys))
        found = counters(made)

    train(tmp_path / "inline", **keys)
    assert model_bytes(tmp_path / "agents") == model_bytes(tmp_path / "inline")
    assert_each_came_once(found, parts, keys)


def assert_each_came_once(
    found: dict[str, int], parts: Sequence[GraphPartition], keys: dict[str, Any]
) -> None:
    """Each packet of the plan counted once, though some came twice and were sent again."""
    widths = [parts[0].num_features, keys["hidden"]]
    in_bytes = "row-bits" in keys
    assert found["data_new"] == planned_packets(parts, "cover", widths, in_bytes=in_bytes)
    assert found["data_duplicate"] > 0
    assert found["packets_sent"] > found["data_new"]


def test_peers_get_their_rows_from_clones_of_one_packet(tmp_path: Path) -> None:
    keys = {**KEYS, "clients": 3}
    parts = make_parts(make_config(keys))
    settings: dict[str, object] = {"broadcast": "tc"}
    with federation(tmp_path, parts, "xdp", lost=0.05, settings=settings) as made:
        train_with(made, configured(tmp_path / "agents", **keys))
        found = counters(made)

    train(tmp_path / "inline", **keys)
    assert model_bytes(tmp_path / "agents") == model_bytes(tmp_path / "inline")
    assert found["clone_copies"] > 0
    assert found["clone_failed"] == found["clone_no_group"] == found["clone_refused"] == 0
    assert found["socket_data"] == 0


def test_packets_lost_doubled_and_out_of_order_change_no_bit(tmp_path: Path) -> None:
    keys = {**KEYS, "clients": 3, "boundary-plan": "cover"}
    parts = make_parts(make_config(keys))
    with federation(tmp_path, parts, "xdp", lost=0.05, doubled=0.05, start=False) as made:
        for agent in made:
            agent.before = ("reordering_agent:shuffle_packets",)
            agent.start()
        train_with(made, configured(tmp_path / "agents", **keys))
        found = counters(made)

    train(tmp_path / "inline", **keys)
    assert model_bytes(tmp_path / "agents") == model_bytes(tmp_path / "inline")
    assert_each_came_once(found, parts, keys)
    assert found["socket_data"] == 0


@pytest.mark.slow
@pytest.mark.real_graphs
def test_cora_trains_as_well_over_the_kernel_path_as_over_tcp(tmp_path: Path) -> None:
    keys: dict[str, Any] = {"clients": 3, "hidden": 16, "rounds": 40, "boundary-plan": "cover"}
    place = {"dataset": "cora", "data-dir": str(data_dir()), "split": "random:0.2/0.1/0.7"}
    cora = {**place, **keys}
    parts = make_parts(make_config(cora))
    with federation(tmp_path, parts, "xdp") as made:
        fixed = configured(tmp_path / "fixed", **cora, codec="fixed")
        train_with(made, fixed)
        found = counters(made)
        # The same agents; another codec goes over TCP.
        train_with(made, configured(tmp_path / "floats", **cora))
        assert counters(made)["data_new"] == found["data_new"]

    train(tmp_path / "inline", **cora, codec="fixed")
    assert model_bytes(tmp_path / "fixed") == model_bytes(tmp_path / "inline")
    accuracy = [result_of(tmp_path / name)["test_accuracy"] for name in ("fixed", "floats")]
    assert accuracy[1] > 0.75
    assert abs(accuracy[0] - accuracy[1]) <= 0.002
    assert found["socket_data"] == 0


def test_an_agent_that_is_killed_goes_on_with_the_same_bits(tmp_path: Path) -> None:
    common = {**KEYS, "clients": 3, "boundary-plan": "cover", "rounds": 12}
    trainings = {"lazy": 1, "standard": 0}
    killed: set[str] = set()
    with federation(tmp_path, make_parts(make_config(common)), "xdp") as made:
        for algorithm, stage in trainings.items():

            def kill_once(event: Event, name: str = algorithm, stage: int = stage) -> None:
                # By then a round goes by tickets, of which an agent that starts anew knows none.
                if isinstance(event, RoundClosed) and event.stage == stage and event.round > 4:
                    if name in killed:
                        return
                    made[1].kill()
                    made[1].start()
                    killed.add(name)

            config = configured(tmp_path / algorithm, **common, algorithm=algorithm)
            train_with(made, config, [kill_once])

    assert killed == trainings.keys()
    for algorithm in trainings:
        alone = train(tmp_path / f"{algorithm}-inline", **common, algorithm=algorithm)
        assert model_bytes(tmp_path / algorithm) == model_bytes(alone), algorithm


def test_a_cut_link_ends_an_exchange_and_a_mended_one_goes_on(tmp_path: Path) -> None:
    keys = {**KEYS, "clients": 3}
    parts = make_parts(make_config(keys))
    cables: list[BadCable] = []
    with federation(tmp_path, parts, "xdp", lost=1.0, cables=cables) as made:
        cut = configured(tmp_path / "cut", **keys, exchange_deadline_s=3.0)
        with pytest.raises(ExchangeIncomplete, match="clients? [012]"):
            train_with(made, cut)
        for agent in made:
            assert agent.status()["datagrams"]["counters"]["data_new"] == 0

        with ThreadPoolExecutor(1) as pool:
            training = pool.submit(train_with, made, configured(tmp_path / "agents", **keys))
            wait_until(lambda: made[1].status()["datagrams"]["waiting_for"], "nothing is awaited")
            # What it had granted is lost with it; it grants anew.
            made[1].kill()
            made[1].start()
            for cable in cables:
                cable.close()
            training.result(timeout=500)

    train(tmp_path / "inline", **keys)
    assert model_bytes(tmp_path / "agents") == model_bytes(tmp_path / "inline")


def test_an_agent_free_to_choose_takes_what_costs_less(tmp_path: Path) -> None:
    keys = {**KEYS, "clients": 2}
    parts = make_parts(make_config(keys))
    recurring = {**keys, "algorithm": "standard"}
    trainings = {
        "lazy": keys,
        "short": {**recurring, "rounds": LEAST_TIMES - 1},
        "long": {**recurring, "rounds": LEAST_TIMES},
    }
    with federation(tmp_path, parts, "auto") as made:
        assert {agent.status()["datagrams"]["kind"] for agent in made} == {"xdp"}
        for name, training in trainings.items():
            train_with(made, configured(tmp_path / name, **training))
            assert (counters(made)["data_new"] > 0) == (name == "long"), name
            # Where blocks are chosen nobody asks, nobody answers.
            assert (controls(made) > 0) == (name == "long"), name
        assert all(agent.log.count("instead_of=datagrams") == 1 for agent in made)

    for name, training in trainings.items():
        train(tmp_path / f"{name}-inline", **training)
        assert model_bytes(tmp_path / name) == model_bytes(tmp_path / f"{name}-inline"), name


def test_missing_xdp_is_an_error_and_auto_goes_on_and_says_so(tmp_path: Path) -> None:
    parts = make_parts(make_config({**KEYS, "clients": 2}))
    without = ["setpriv", "--bounding-set", "-bpf,-sys_admin", "--inh-caps", "-bpf,-sys_admin"]
    with federation(tmp_path, parts, "xdp", start=False) as made:
        made[0].program = [*without, program("retexo")]
        with pytest.raises(AssertionError, match="ended with 2"):
            made[0].start()
        assert "CAP_BPF" in made[0].log
        settings = made[0].settings.read_text()
        made[0].settings.write_text(settings.replace("xdp://", "auto://"))
        made[0].start()
        assert made[0].status()["datagrams"]["kind"] == "udp"
        assert made[0].log.count("instead_of=xdp") == 1
