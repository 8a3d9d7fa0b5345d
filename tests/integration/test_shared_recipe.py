"""One recipe of all clients' summaries, asked for and handed out; and what is not believed."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import stat
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w

from retexo_fl.agent import wire
from retexo_fl.agent.remote import RemoteClient, ask_agent
from retexo_fl.agent.sharing import SummaryShare, share_summary
from retexo_fl.client.api import (
    AnswerT,
    HelloRequest,
    RecipeAnswer,
    RecipeRequest,
    Request,
    SummaryAnswer,
    SummaryRequest,
    Ticket,
    answer_class,
)
from retexo_fl.errors import (
    CheckpointError,
    ConfigurationError,
    LocalProtocolError,
    RemoteProtocolError,
    RetexoError,
    RoundIncomplete,
)
from retexo_fl.federation.asking import Messenger, WaitPolicy
from retexo_fl.federation.client_handlers import build_client_app, client_index
from retexo_fl.federation.recipe_app import RecipeTask, share_recipe
from retexo_fl.graph.recipes import (
    FeatureRecipe,
    TableSummary,
    fit_recipe,
    read_recipe,
)
from retexo_fl.graph.sources.tables import ColumnChoice, summarise_table
from retexo_fl.ledger import TrafficLedger
from retexo_fl.simulation.inline_grid import InlineGrid
from tests.support.cli import CommandLine
from tests.support.loopback import make_members
from tests.support.recipes import NAMES, write_sites

TICKET = Ticket(job="recipe-0", attempt=1)
TASK = RecipeTask(out="", logarithms=("balance",))


@pytest.fixture(scope="module")
def summaries(tmp_path_factory: pytest.TempPathFactory) -> list[TableSummary]:
    """Return the summary of each client, and at last that of the table that has all rows."""
    folder = tmp_path_factory.mktemp("tables")
    choice = ColumnChoice(drop=("code",))
    paths = [write_sites(folder), *(folder / f"{name}.csv" for name in NAMES)]
    whole, *each = [summarise_table(path, choice) for path in paths]
    return [*each, whole]


class Asked:
    """What a ClientApp asks, through the bytes of the socket; its answer may be another."""

    def __init__(self, share: SummaryShare, false: Callable[[Any], Any] = lambda answer: answer):
        self._share, self._false = share, false

    def ask(self, request: Request[AnswerT]) -> AnswerT:
        prefix, head, body = split(b"".join(wire.encode_request(request, {})))
        outcome = asyncio.run(self._share.answer(wire.decode_request(head, body)))
        prefix, head, body = split(b"".join(outcome.parts))
        assert prefix.kind is wire.Kind.ANSWER
        kind = answer_class(request, masked=True)
        answer: AnswerT = self._false(wire.decode_answer(kind, head, body))
        return answer


def split(data: bytes) -> tuple[wire.Prefix, bytes, bytes]:
    prefix = wire.Prefix.parse(data[: wire.PREFIX_BYTES])
    end = wire.PREFIX_BYTES + prefix.head_bytes
    return prefix, data[wire.PREFIX_BYTES : end], data[end:]


def made(clients: Sequence[Any], task: RecipeTask = TASK, *, masked: bool = False) -> FeatureRecipe:
    """Make a recipe of what clients answer to a server in this process."""
    app = build_client_app(lambda context, _: clients[client_index(context)])
    grid = InlineGrid(app, len(clients), {})
    messenger = Messenger(grid, ledger=TrafficLedger(), policy=WaitPolicy(timeout_s=20.0))
    return share_recipe(messenger, len(clients), task, masked=masked)


@pytest.mark.parametrize("order", [(0, 1), (1, 0), (2,)])
def test_every_client_stores_the_recipe_of_the_whole_table(
    summaries: list[TableSummary], tmp_path: Path, order: Sequence[int]
) -> None:
    paths = [tmp_path / f"{client}.toml" for client in order]
    pairs = zip(order, paths, strict=True)
    task = replace(TASK, drop=("country",))
    recipe = made([Asked(SummaryShare(summaries[at], path)) for at, path in pairs], task)
    expected, _ = fit_recipe(summaries[-1].without(task.drop), task)
    assert recipe == expected
    for path in paths:
        assert path.read_text() == expected.to_toml()
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def changed(edit: Callable[[dict[str, Any]], object]) -> Callable[[Any], Any]:
    """Return what falsifies a client's summary."""

    def false(answer: Any) -> Any:
        if not isinstance(answer, SummaryAnswer):
            return answer
        values = json.loads(answer.summary.tobytes())
        edit(values)
        return SummaryAnswer(summary=np.frombuffer(json.dumps(values).encode(), np.uint8))

    return false


def replaced(**changes: Any) -> Callable[[Any], Any]:
    def false(answer: Any) -> Any:
        return replace(answer, **changes) if {*changes} <= {*answer.__slots__} else answer

    return false


@pytest.mark.parametrize(
    ("false", "error", "told"),
    [
        (
            replaced(summary=np.zeros(3, np.uint8)),
            RemoteProtocolError,
            "summary of Flower node 3: not JSON",
        ),
        (
            changed(lambda values: values.pop("rows")),
            RemoteProtocolError,
            "summary of Flower node 3: summary: rows: missing",
        ),
        (
            changed(lambda values: values["columns"]["balance"].update(empty=2**40)),
            RemoteProtocolError,
            "summary of Flower node 3: balance: got '1099511.* cells'; expected '?[0-9]*, one for",
        ),
        (
            changed(lambda values: values["columns"]["country"]["texts"].update(DE=1)),
            RemoteProtocolError,
            "summary of Flower node 3: country: got .* cells'; expected",
        ),
        (
            changed(lambda values: values["columns"]["balance"]["numbers"].update(sum="1e9")),
            RemoteProtocolError,
            "summary of Flower node 3: balance: got '1e9'; expected a fraction",
        ),
        (
            changed(lambda values: values["label"].update(numbers=True)),
            RemoteProtocolError,
            "summary of Flower node 3: label: got 'numbers and texts'; expected one of them",
        ),
        (
            changed(lambda values: values["columns"].pop("country")),
            ConfigurationError,
            "summary of Flower node 3: column 'country' is missing",
        ),
        (
            changed(lambda values: values.update({"label-column": "other"})),
            ConfigurationError,
            "summary of Flower node 3: label-column is 'other'",
        ),
        (
            replaced(digest="0" * 64),
            RemoteProtocolError,
            "client 1: stored recipe '0000000000000000'; expected",
        ),
    ],
)
def test_what_a_client_sends_is_checked_before_it_is_believed(
    summaries: list[TableSummary],
    tmp_path: Path,
    false: Callable[[Any], Any],
    error: type[RetexoError],
    told: str,
) -> None:
    shares = [SummaryShare(summaries[at], tmp_path / f"{at}.toml") for at in (0, 1)]
    with pytest.raises(error, match=f"^{told}"):
        made([Asked(shares[0]), Asked(shares[1], false)])
    # A recipe goes out when all summaries are right, and only then.
    assert (tmp_path / "0.toml").exists() is ("stored" in told)


def recipe_of(summary: TableSummary) -> FeatureRecipe:
    recipe, _ = fit_recipe(summary)
    return recipe


def ask_to_store(share: SummaryShare, content: bytes) -> RecipeAnswer:
    return Asked(share).ask(RecipeRequest(ticket=TICKET, recipe=np.frombuffer(content, np.uint8)))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda r: replace(r, key_column="id"), "key-column: got 'id'; expected 'key'"),
        (lambda r: replace(r, label_column="y"), "label-column: got 'y'; expected 'label'"),
        (lambda r: replace(r, classes=("no", "maybe")), "classes: 'yes' is missing"),
        (
            lambda r: replace(r, numbers=(replace(r.numbers[0], column="age"),)),
            "'age' is no column of",
        ),
        (
            lambda r: replace(r, numbers=(replace(r.numbers[0], column="bank"),)),
            "'bank' is a column of numbers",
        ),
        (
            lambda r: replace(
                r, numbers=(), categories=(replace(r.categories[0], column="balance"),)
            ),
            "'balance' is a column of texts",
        ),
    ],
)
def test_a_recipe_that_is_not_for_the_table_is_not_stored(
    summaries: list[TableSummary],
    tmp_path: Path,
    change: Callable[[FeatureRecipe], FeatureRecipe],
    told: str,
) -> None:
    out, right = tmp_path / "recipe.toml", recipe_of(summaries[0])
    share = SummaryShare(summaries[0], out)
    with pytest.raises(ConfigurationError, match=f"^the server's recipe: {re.escape(told)}"):
        ask_to_store(share, change(right).to_toml().encode())
    with pytest.raises(ConfigurationError, match="the server's recipe: not a TOML file"):
        ask_to_store(share, b"\xff")
    assert not out.exists()
    assert ask_to_store(share, right.to_toml().encode()).digest == right.digest
    # The same question has the same answer; another recipe comes too late.
    assert ask_to_store(share, right.to_toml().encode()).digest == right.digest
    other = replace(right, numbers=(replace(right.numbers[0], mean=1.0),))
    with pytest.raises(ConfigurationError, match="another than .* which is stored"):
        ask_to_store(share, other.to_toml().encode())
    assert read_recipe(out) == right


def test_a_recipe_that_cannot_be_written_is_not_said_to_be(
    summaries: list[TableSummary], tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    share = SummaryShare(summaries[0], tmp_path / "file" / "recipe.toml")
    with pytest.raises(CheckpointError, match="could not be written"):
        ask_to_store(share, recipe_of(summaries[0]).to_toml().encode())


def test_a_client_without_a_part_answers_nothing_else(
    summaries: list[TableSummary], tmp_path: Path
) -> None:
    with pytest.raises(LocalProtocolError, match="^hello: this client has no part yet"):
        Asked(SummaryShare(summaries[0], tmp_path / "r.toml")).ask(HelloRequest(ticket=TICKET))


def test_the_socket_is_there_until_the_recipe_has_come_and_no_longer_than_said(
    summaries: list[TableSummary], tmp_path: Path
) -> None:
    path, out = tmp_path / "agent.sock", tmp_path / "recipe.toml"
    with pytest.raises(RoundIncomplete, match="no recipe within 0.1 s"):
        share_summary(summaries[0], path, out, wait_s=0.1)
    assert not path.exists()
    found: list[FeatureRecipe] = []
    thread = threading.Thread(
        target=lambda: found.append(share_summary(summaries[0], path, out, wait_s=60.0))
    )
    thread.start()
    client = RemoteClient(path, {})
    summary = client.ask(SummaryRequest(ticket=TICKET)).summary
    assert summary.tobytes() == summaries[0].to_json().encode()
    with pytest.raises(LocalProtocolError, match="^status: this client has no agent yet"):
        ask_agent(path, "status")
    recipe = recipe_of(summaries[0])
    content = np.frombuffer(recipe.to_toml().encode(), np.uint8)
    for _ in range(2):
        assert client.ask(RecipeRequest(ticket=TICKET, recipe=content)).digest == recipe.digest
    thread.join(60.0)
    assert found == [recipe]
    assert not path.exists()


def test_a_signal_amid_the_making_of_the_socket_leaves_none(
    summaries: list[TableSummary], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = asyncio.start_unix_server

    async def interrupted(*arguments: Any, **keys: Any) -> asyncio.Server:
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(0.01)
        return await start(*arguments, **keys)

    def stop(_number: int, _frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        monkeypatch.setattr(asyncio, "start_unix_server", interrupted)
        with pytest.raises(KeyboardInterrupt):
            share_summary(summaries[0], tmp_path / "agent.sock", tmp_path / "r.toml", wait_s=60.0)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert not (tmp_path / "agent.sock").exists()


def test_commands_refuse_what_they_cannot_do(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    retexo = CommandLine(capfd)
    write_sites(tmp_path)
    retexo.done("features", "summarise", "north.csv", "--out", "north.json")
    settings = dict.fromkeys(("partition", "state", "key", "certificate", "socket"), "none")
    Path("agent.toml").write_text(tomli_w.dumps({**settings, "introductions": True}))
    share = ("features", "share", "north.json", "--config", "agent.toml", "--out", "r.toml")
    assert "most frequent text in 'code': got 1; expected at least 10" in retexo.refused(*share)
    assert "nodes: got 342; expected at least 500" in retexo.refused(*share, "--least-nodes", "500")
    masked = ("--secure-aggregation", "masked")
    assert "masked, but there is no roster file" in retexo.refused(*share, *masked)
    assert "expected masked or none" in retexo.refused(*share, "--secure-aggregation", "some")
    identities, roster = make_members(Path("keys"), 2)
    own = {
        "key": str(identities[0].key_path),
        "certificate": str(identities[0].certificate_path),
        "roster": "roster.toml",
    }
    Path("roster.toml").write_text(roster.text())
    required = {**settings, **own, "require-secure-aggregation": True}
    Path("agent.toml").write_text(tomli_w.dumps(required))
    told = "masked, but client 0: its roster file has no agreement of the owners; expected one"
    assert told in retexo.refused(*share)
    none = retexo.refused(*share, "--secure-aggregation", "none")
    assert none.startswith("secure-aggregation: none; expected masked (require-secure-aggregation")
    assert not Path(settings["state"]).exists()
    fit = ("features", "fit", "--superlink", "127.0.0.1:1", "--insecure", "--out", "r.toml")
    for options, told in (
        ((), "clients: missing; expected how many the deployment has"),
        (("north.json",), "FILE: cannot be given with superlink"),
        (("--key-column", "k"), "key-column: cannot be given with superlink"),
        (("--clients", "2"), "superlink: "),
        (("--clients", "2", *masked), "secure-aggregation: masked does not go with"),
    ):
        assert retexo.refused(*fit, *options).startswith(told)
    alone = ("features", "fit", "north.json", *masked, "--out", "r.toml")
    assert retexo.refused(*alone).startswith("secure-aggregation: expected only with --superlink")
    assert "FILE: missing" in retexo.refused("features", "fit", "--out", "r.toml")
    Path("r.toml").touch()
    for command in (share, (*fit, "--clients", "2")):
        assert "r.toml exists" in retexo.refused(*command)
