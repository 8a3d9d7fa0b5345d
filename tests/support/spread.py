"""How far one thing is spread over the package: ``python -m tests.support.spread`` prints it.

Reads of choices are counted in the syntax; functions and modules of a round, and of a row between
agents, are those that ran, by ``sys.setprofile``. A module of over 500 lines counts twice.
"""

from __future__ import annotations

import ast
import asyncio
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

import grimp
import pytest
from flwr.app import Message

import retexo_fl
from retexo_fl.agent import process
from retexo_fl.agent.remote import RemoteClient
from retexo_fl.agent.service import ComputeThread
from retexo_fl.agent.settings import read_settings
from retexo_fl.client import api
from retexo_fl.client.factory import InProcessClients
from retexo_fl.client.preparation import make_parts
from retexo_fl.config import RunConfig, config_values
from retexo_fl.federation import checkpoints
from retexo_fl.federation.client_handlers import build_client_app, in_simulation
from retexo_fl.federation.strategy import LazyMessagePassing
from retexo_fl.federation.trained_model import read_trained_model
from retexo_fl.graph import open_partition
from retexo_fl.methods.predict.script import PredictionLoop
from retexo_fl.run_log.events import Event, RoundClosed
from retexo_fl.simulation.inline_grid import InlineGrid
from tests.support.agents import agents
from tests.support.limits import PERMISSIVE
from tests.support.predictions import SMALL, write_small
from tests.support.runs import configured, train

PACKAGE: Final = Path(next(iter(retexo_fl.__path__)))
LONG_LINES: Final = 500
#: Where choices are declared, and where a way of training may ask for its own.
_AT_HOME: Final = ("config", "methods")
_CHOICES: Final = frozenset({"task", "algorithm", "solver", "codec", "secure_aggregation"})
_KEYS: Final = _CHOICES | {"secure-aggregation"}
#: What follows from one of them alone.
_STAND_INS: Final = frozenset({"traits", "has_basis", "lag", "sends_changes"})
#: None where a choice was made otherwise.
_OR_NONE: Final = frozenset({"masking", "masks", "basis", "controls"})
#: Of objects that there are with one choice alone.
_CLASSES: Final = frozenset(
    {
        *("LayerTrainer", "EndToEndTrainer", "SampledTrainer", "EndToEndClient", "LinkClient"),
        *("BasisRequest", "GramRequest", "MaskedAnswer", "MaskedClients", "MaskedSealing"),
    }
)
#: What computes rows, and what a graph is, would be there without a network.
_COMPUTING: Final = ("graph", "layers", "training")
#: What a stage goes on with.
_AFTER_EXCHANGE: Final = (api.TRAIN.message_type, api.PREDICT.message_type)
_LEAN: Final[dict[str, Any]] = {
    **{"dropout": 0.0, "optimizer": "lbfgs", "warm_start": True},
    **{"basis": "supervised", "basis_blocks": 2, "basis_bits": 8},
    **{"row_bits": 8, "update_bits": 8, "weight_bits": 4},
}
_CLIENT: Final = "retexo_fl.client.client"


def main() -> int:
    """Print all measures."""
    for name, found in measured().items():
        sys.stdout.write(f"{found:4}  {name}\n")
    return 0


def measured() -> dict[str, int]:
    """Return all measures by name."""
    reads = reads_of_choices()
    imports = grimp.build_graph("retexo_fl")
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        plain = round_of(folder / "plain", clients=2)
        of_three = round_of(folder / "three", clients=3)
        masked = round_of(folder / "masked", clients=3, secure_aggregation="masked")
        lean = round_of(folder / "lean", clients=3, **_LEAN)
        row = row_between_agents(folder / "agents")
        sequences = sequences_of_trainings(folder / "sequences")
    return {
        "reads of choices": sum(reads.values()),
        "modules that read choices": len(reads),
        "modules of a round": weight(plain),
        "functions of a round": len(plain),
        "modules that masks add to it": weight(masked, of_three),
        "functions that masks add to it": len(masked - of_three),
        "modules that lean adds to it": weight(lean, of_three),
        "functions that lean adds to it": len(lean - of_three),
        "modules of a row over TCP": len(
            {file for file, _ in row if room_of(file) not in _COMPUTING}
        ),
        "modules that client/client.py imports": len(
            imports.find_modules_directly_imported_by(_CLIENT)
        ),
        "modules that client/client.py needs": len(imports.find_upstream_modules(_CLIENT)),
        "times a sequence is written": len(sequences),
    }


def room_of(file: Path) -> str:
    """Return the room of a module."""
    return file.relative_to(PACKAGE).parts[0]


# ---- reads of choices ----------------------------------------------------------------------------


def reads_of_choices() -> Counter[str]:
    """Return, by module, how many places ask which task, algorithm, solver, codec or mask it is."""
    found: Counter[str] = Counter()
    for path in sorted(PACKAGE.rglob("*.py")):
        if room_of(path) not in _AT_HOME:
            found[str(path.relative_to(PACKAGE))] = reads_in(path.read_text(encoding="utf-8"))
    return +found


def reads_in(source: str) -> int:
    """Return how many places of a module do."""
    return sum(map(_is_read, ast.walk(ast.parse(source))))


def _is_read(node: ast.AST) -> bool:
    match node:
        case ast.Attribute(attr=name, ctx=ast.Load()):
            return name in _CHOICES or name in _STAND_INS
        case ast.Subscript(slice=ast.Constant(value=str(key)), ctx=ast.Load()):
            return key in _KEYS
        case ast.Call(func=ast.Attribute(attr="get"), args=[ast.Constant(value=str(key)), *_]):
            return key in _KEYS
        case ast.Call(func=ast.Name(id="isinstance"), args=[_, asked]):
            return any(isinstance(n, ast.Name) and n.id in _CLASSES for n in ast.walk(asked))
        case ast.Compare(
            left=ast.Name(id=name) | ast.Attribute(attr=name),
            ops=[ast.Is() | ast.IsNot()],
            comparators=[ast.Constant(value=None)],
        ):
            return name.lstrip("_") in _OR_NONE
    return False


# ---- what runs -----------------------------------------------------------------------------------

Functions = frozenset[tuple[Path, str]]


class _Ran:
    """Functions of the package that were called while it was told to look."""

    def __init__(self) -> None:
        self.looks = False
        self.without: set[int] = set()
        self._codes: set[CodeType] = set()

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        """Note a call; part of Python's interface."""
        del argument
        if self.looks and event == "call" and threading.get_ident() not in self.without:
            self._codes.add(frame.f_code)

    @property
    def functions(self) -> Functions:
        """All of them but comprehensions and lambdas."""
        found = ((Path(c.co_filename), c.co_qualname, c.co_name) for c in self._codes)
        return frozenset(
            (file, name)
            for file, name, last in found
            if file.is_relative_to(PACKAGE) and not last.startswith("<")
        )


@contextmanager
def _watched() -> Iterator[_Ran]:
    """Watch this thread and all that start meanwhile."""
    ran, before = _Ran(), sys.getprofile()
    threading.setprofile(ran)
    sys.setprofile(ran)
    try:
        yield ran
    finally:
        sys.setprofile(before)
        threading.setprofile(None)


def weight(functions: Functions, without: Functions = frozenset()) -> int:
    """Return in how many modules functions are, long ones twice, but for those of others."""
    files = {file for file, _ in functions} - {file for file, _ in without}
    return sum(1 + (len(file.read_text().splitlines()) > LONG_LINES) for file in files)


def round_of(out: Path, **keys: Any) -> Functions:
    """Return what runs from the end of a round to that of the next, its checkpoint with it."""
    with _watched() as ran, pytest.MonkeyPatch.context() as patch:
        # Else it would depend on how fast this machine is.
        patch.setattr(checkpoints, "MOST_LOST_S", 0.0)

        def look(event: Event) -> None:
            if isinstance(event, RoundClosed) and event.stage == 1:
                ran.looks = event.round == 2

        train(out, look, **{"hidden": 8, "rounds": 4, **keys})
    return ran.functions


def row_between_agents(folder: Path) -> Functions:
    """Return what runs in two agents from the question to send rows to the answer that they came.

    They are agents as ``retexo agent run`` starts them, but in this process.
    """
    keys = {"clients": 2, "hidden": 8}
    config = configured(folder, **keys)
    values, job = config_values(config), "job-0123456789ab"
    with (
        agents(folder, make_parts(config), settings=PERMISSIVE, start=False) as made,
        _watched() as ran,
        pytest.MonkeyPatch.context() as patch,
    ):
        # A sign of life would be seen where this machine is slow.
        patch.setattr(process, "_STATUS_EVERY_S", 3600.0)
        settings = [read_settings(agent.settings) for agent in made]
        running = [
            process._Agent.of(of_one, open_partition(Path(of_one.partition)), ComputeThread())
            for of_one in settings
        ]

        def answers(request: api.Request[Any]) -> list[Any]:
            ran.without.add(threading.get_ident())
            return [RemoteClient(agent.socket, values).ask(request) for agent in made]

        async def story() -> None:
            tasks = [asyncio.create_task(agent.run()) for agent in running]
            while not all(agent.socket.exists() for agent in made):
                await asyncio.sleep(0.01)
            await asyncio.to_thread(
                answers, api.HelloRequest(ticket=api.Ticket(job=job, attempt=1))
            )
            ticket = api.Ticket(job=job, attempt=1, weights_digest=api.chain_digest(b"", None))
            ran.looks = True
            await asyncio.to_thread(answers, api.PublishRequest(ticket=ticket))
            collect = api.CollectRequest(ticket=ticket, wait_s=60.0)
            came = await asyncio.to_thread(answers, collect)
            ran.looks = False
            assert all(answer.complete for answer in came)
            for agent in running:
                agent.stopping.set()
            await asyncio.gather(*tasks)

        asyncio.run(story())
    return ran.functions


# ---- sequences -----------------------------------------------------------------------------------


def sequences_of_trainings(folder: Path) -> set[str]:
    """Return the functions that say what follows an exchange: in a run, in a ServerApp of a user's
    own, and in a prediction.

    Each is the innermost one that is under way both while a stage's rows are asked for and while
    what comes next is.
    """
    folder.mkdir()
    write_small(folder / "small.npz")
    keys = {**SMALL, "data_dir": folder, "clients": 2, "rounds": 2, "hidden": 4}
    config = configured(folder / "run", **keys)

    def in_a_server_app() -> None:
        strategy, grid = LazyMessagePassing(config), _grid(config)
        for _ in range(strategy.stages):
            strategy.start(grid=grid)

    def predict() -> None:
        PredictionLoop(
            grid=_grid(config, predictions=folder),
            config=config,
            model=read_trained_model(folder / "run"),
            form="npz",
            tell=lambda event: None,
        ).run()

    return {
        _innermost(lambda: train(folder / "run", **keys)),
        _innermost(in_a_server_app),
        _innermost(predict),
    }


def _grid(config: RunConfig, predictions: Path | None = None) -> InlineGrid:
    clients = InProcessClients(make_parts(config), config, predictions=predictions)

    app = build_client_app(in_simulation(clients.find))
    return InlineGrid(app, config.clients, config_values(config))


def _innermost(carry_out: Callable[[], object]) -> str:
    stacks: dict[str, list[FrameType]] = {}
    push = InlineGrid.push_messages

    def push_messages(self: InlineGrid, messages: Iterable[Message]) -> Iterable[str]:
        sent = list(messages)
        for message in sent:
            if message.metadata.group_id.split(".")[1] == "1":
                stacks.setdefault(message.metadata.message_type, [*_stack()])
        return push(self, sent)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(InlineGrid, "push_messages", push_messages)
        carry_out()
    first = stacks[api.PUBLISH.message_type]
    then = next(stack for kind, stack in stacks.items() if kind in _AFTER_EXCHANGE)
    both = (frame for frame in first if any(frame is other for other in then))
    return next(both).f_code.co_qualname


def _stack() -> Iterator[FrameType]:
    """Yield the frames of the package, the innermost first."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        if Path(frame.f_code.co_filename).is_relative_to(PACKAGE):
            yield frame
        frame = frame.f_back


if __name__ == "__main__":
    sys.exit(main())
