"""Of answers under masks neither length nor words follow from a client's data.

Two federations whose parts differ in everything, nodes, edges, features, labels and splits, are
asked the same; each answer is compared as it would leave its agent.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from retexo_fl.agent import wire
from retexo_fl.agent.masked_sharing import MaskedShare
from retexo_fl.agent.sharing import SummaryShare
from retexo_fl.channels import BlockKey, MemoryChannel
from retexo_fl.client import schema
from retexo_fl.client.api import (
    BasisRequest,
    ChoiceRequest,
    CollectRequest,
    ColumnsRequest,
    ColumnSumsRequest,
    GramRequest,
    HelloRequest,
    KeysRequest,
    MaskedAnswer,
    PredictRequest,
    PublishRequest,
    RecipeRequest,
    Request,
    Ticket,
    chain_digest,
)
from retexo_fl.errors import RetexoError
from retexo_fl.federation.recipe_app import RecipeTask
from retexo_fl.graph import GraphPartition
from retexo_fl.graph.recipes import FeatureRecipe, TableSummary, fit_recipe, merge_summaries
from retexo_fl.graph.sources.tables import ColumnChoice, summarise_table
from retexo_fl.masking.agreement import Agreement
from retexo_fl.masking.step import SharedStep
from retexo_fl.training.basis import Basis, BasisForm
from retexo_fl.training.basis_choice import probe_width
from retexo_fl.training.stage_model import ModelShape, num_weights
from tests.integration.test_shared_recipe import Asked
from tests.support.adversary import Adversary
from tests.support.loopback import make_members
from tests.support.owners import agreed, signer_of

CLIENTS = 3
SPLITS = ("random:0.4/0.3/0.3", "random:0.2/0.2/0.6")
#: How the graph was cut.
GIVEN = {"partitioning"}
#: What two runs of the same client differ in, too: keys, signatures, masked numbers.
FRESH = {"mask-key", "mask-signature", "agreement", "digest", "beside", "moved"}


def _graph(seed: int) -> str:
    size = "nodes=150,edges=600" if seed else "nodes=210,edges=500"
    return f"synthetic:{size},classes=3,features=12,words={3 + 2 * seed},signal=0.5,seed={seed}"


def _server(folder: Path, seed: int, keys: dict[str, Any]) -> Adversary:
    """Return a federation of one of two graphs, with the same configuration as that of the other.

    Agents have their parts, and no run names their data.
    """
    folder.mkdir()
    data = {"dataset": _graph(seed), "split": SPLITS[seed]}
    change = _as_it_is
    if seed:
        change = _that_adds_nothing if "solver" in keys else _with_keys_that_are_no_text
    return Adversary.in_one_process(folder, CLIENTS, {**keys, **data}, change=change)


def _as_it_is(part: GraphPartition) -> GraphPartition:
    return part


def _with_keys_that_are_no_text(part: GraphPartition) -> GraphPartition:
    keys, others = ([b"\xff" + key for key in of.tolist()] for of in _keys(part))
    return replace(part, node_keys=np.array(keys), boundary_keys=np.array(others))


def _that_adds_nothing(part: GraphPartition) -> GraphPartition:
    """Leave the first client, besides, no node of which anything is added up."""
    other = _with_keys_that_are_no_text(part)
    none = np.zeros(part.num_inner, bool)
    return other if part.client else replace(other, train_mask=none, val_mask=none)


def _keys(part: GraphPartition) -> tuple[np.ndarray, np.ndarray]:
    return part.node_keys, part.boundary_keys


def _seen(ask: Callable[[], Any]) -> tuple[Any, ...]:
    """Return all of an answer that a server could tell apart: texts, lengths, clear values."""
    try:
        answer = ask()
    except RetexoError as error:
        # Digests that differ with the agreement are no data, nor is where the test writes.
        text = re.sub(r"\b[0-9a-f]{16,}\b", "DIGEST", str(error))
        return type(error).__name__, re.sub(r"^/\S*/[01]/", "FOLDER/", text)
    values, array = schema.flatten(answer)
    told = {
        name: len(value) if name in FRESH else value
        for name, value in values.items()
        if name not in GIVEN
    }
    clear = len(b"".join(wire.encode_answer(answer))) if not GIVEN & {*values} else 0
    form = None if array is None else (array.dtype.name, array.shape)
    shown = None if array is None or isinstance(answer, MaskedAnswer) else array.tobytes()
    return type(answer).__name__, told, form, shown, clear


def _with_weights(server: Adversary, values: np.ndarray) -> Iterator[tuple[str, Request[Any]]]:
    """Yield questions that are answered by sums, with weights that may make anything overflow."""
    server.weights = values
    number = int(np.isfinite(values).all()) + 2 * int(np.abs(values).max() > 1)
    yield "train", server.train(number=number + 1)
    for nodes in ("validation", "test"):
        yield nodes, server.evaluate(nodes, number=number + 1)


def _questions(server: Adversary) -> Iterator[tuple[str, Request[Any]]]:
    """Yield all questions of a training, and some that are refused."""
    ticket = server.ticket()
    yield "hello", HelloRequest(ticket=ticket)
    # Before there are keys.
    yield "labels too early", server.labels()
    server.greet(1)
    server.hand_out(1, range(CLIENTS))
    yield (
        "keys of fewer",
        KeysRequest(
            ticket=ticket,
            agreement=server.agreement.digest,
            cohort=(0, 1),
            keys=np.zeros(64, np.uint8),
        ),
    )
    yield "train too early", server.train()
    yield "counts", server.part_counts()
    yield "labels", server.labels(number=1)
    yield "publish", PublishRequest(ticket=ticket)
    yield "collect too early", CollectRequest(ticket=ticket)
    yield "close too early", CollectRequest(ticket=ticket, close=True)
    for client in server.clients:
        client.ask(PublishRequest(ticket=ticket))
    yield "collect", CollectRequest(ticket=ticket, close=True)
    for client in server.clients:
        client.ask(CollectRequest(ticket=ticket, close=True))
    size = len(server.weights)
    for values in (np.zeros(size), np.full(size, 1e30), np.full(size, np.nan)):
        yield from _with_weights(server, values.astype(np.float32))
    yield "an earlier place", server.train(number=1)
    yield "another attempt", server.train(attempt=0)
    yield "other weights", replace(server.train(number=9), weights=np.zeros(3, np.float32))
    yield "no stage", replace(server.train(), ticket=server.ticket(number=9, stage=7))
    yield "no predictions", PredictRequest(ticket=ticket, weights=server.weights, form="npz")
    yield "no basis", BasisRequest(ticket=ticket)
    yield "no products", GramRequest(ticket=ticket)
    yield "no comparison", ChoiceRequest(ticket=ticket, weights=np.zeros(2, np.float32))
    weights = np.full(num_weights(ModelShape.of_part(server.config, server.parts[0]), 0), 1e30)
    for scale in (0.0, 1.0, np.nan):
        made = (scale * weights).astype(np.float32)
        stage = server.ticket(stage=1, digest=chain_digest(server.first(), made))
        asked = PublishRequest(ticket=stage, previous_digest=server.first(), weights=made)
        yield f"publish {scale}", asked
        yield f"collect {scale}", CollectRequest(ticket=stage)


def _of_a_basis(server: Adversary) -> Iterator[tuple[str, Request[Any]]]:
    """Yield questions for a basis, some with steps in which every sum overflows."""
    server.greet(1)
    server.hand_out(1, range(CLIENTS))
    yield "sums", BasisRequest(ticket=server.ticket())
    features = ModelShape.of_part(server.config, server.parts[0]).features
    form = BasisForm(features=features, dtype="float32", bits=server.config.basis_bits)
    for number, (exponent, width, scale) in enumerate(
        ((0, 0, 0.0), (-100, 0, 1.0), (-100, 2, 1.0), (0, 2, 1e30)), start=1
    ):
        mean, directions = np.full(features, scale), np.full((features, width), scale)
        made = Basis(mean=mean.astype("f4"), directions=directions.astype("f4"))
        yield (
            f"block {number}",
            BasisRequest(
                ticket=server.ticket(number=number),
                weights=form.encode(made),
                steps=SharedStep(32, exponent).told,
            ),
        )


def _of_products(server: Adversary) -> Iterator[tuple[str, Request[Any]]]:
    """Yield questions for products, with steps in which all fits, and none does."""
    server.greet(1)
    server.hand_out(1, range(CLIENTS))
    ticket = server.ticket()
    steps = SharedStep(32, 0).told
    yield "products too early", GramRequest(ticket=server.ticket(number=1), steps=steps)
    for asked in (PublishRequest(ticket=ticket), CollectRequest(ticket=ticket, close=True)):
        for client in server.clients:
            client.ask(asked)
    for number, exponent in enumerate((0, -100), start=2):
        steps = SharedStep(32, exponent).told
        yield f"products {number}", GramRequest(ticket=server.ticket(number=number), steps=steps)


def _of_a_choice(server: Adversary) -> Iterator[tuple[str, Request[Any]]]:
    """Yield sums of both kinds of rows, and comparisons of bases in which all fits, and none."""
    server.greet(1)
    server.hand_out(1, range(CLIENTS))
    ticket = server.ticket()
    for asked in (PublishRequest(ticket=ticket), CollectRequest(ticket=ticket, close=True)):
        for client in server.clients:
            client.ask(asked)
    yield "sums", BasisRequest(ticket=ticket, rows="own sums")
    shape = ModelShape.of_part(server.config, server.parts[0])
    values = 2 * shape.features * (1 + probe_width(shape))
    for number, (exponent, scale) in enumerate(
        ((0, 0.0), (-20, 1.0), (-100, 1.0), (0, 1e30)), start=1
    ):
        yield (
            f"comparison {number}",
            ChoiceRequest(
                ticket=server.ticket(number=number),
                weights=np.full(values, scale, np.float32),
                steps=SharedStep(32, exponent).told,
            ),
        )


def _of_predictions(server: Adversary) -> Iterator[tuple[str, Request[Any]]]:
    """Yield questions for predictions that are written down, and such as cannot be."""
    server.meet()
    size, number = len(server.weights), 0
    for value in (0.0, 1.0, 1e30, np.nan):
        for form, name in (("npz", ""), ("csv", "0123456789abcdef"), ("xls", ""), ("csv", "..")):
            number += 1
            yield (
                f"{form} of {value} in {name!r}",
                PredictRequest(
                    ticket=server.ticket(number=number),
                    weights=np.full(size, value, np.float32),
                    form=form,
                    set_name=name,
                ),
            )
    shutil.rmtree(server.predictions[0])
    for form in ("npz", "csv"):
        number += 1
        ticket = server.ticket(number=number)
        yield (
            f"{form} without a folder",
            PredictRequest(ticket=ticket, weights=np.ones(size, np.float32), form=form),
        )


def _all_seen(
    folder: Path,
    seed: int,
    keys: dict[str, Any],
    questions: Callable[[Adversary], Iterator[tuple[str, Request[Any]]]],
) -> list[tuple[str, Any]]:
    server = _server(folder, seed, keys)
    return [
        (name, _seen(partial(server.clients[0].ask, asked))) for name, asked in questions(server)
    ]


@pytest.mark.parametrize(
    ("keys", "questions", "kinds"),
    [
        (
            {"layers": 2},
            _questions,
            {"HelloAnswer", "MaskedAnswer", "PublishAnswer", "CollectAnswer"},
        ),
        (
            {"layers": 2, "codec": "fixed"},
            _questions,
            {"HelloAnswer", "MaskedAnswer", "PublishAnswer", "CollectAnswer"},
        ),
        (
            {"layers": 2, "codec": "dense", "relay": True, "engine": "deployment"},
            _questions,
            {"HelloAnswer", "MaskedAnswer", "PublishAnswer", "CollectAnswer"},
        ),
        ({"basis": "supervised", "basis-blocks": 4}, _of_a_basis, {"MaskedAnswer"}),
        (
            {"basis": "supervised", "basis-rows": "choose", "basis-blocks": 2, "model": "gcn"},
            _of_a_choice,
            {"MaskedAnswer"},
        ),
        ({"solver": "ridge"}, _of_products, {"MaskedAnswer"}),
        ({}, _of_predictions, {"MaskedAnswer", "LocalProtocolError"}),
        ({"metric": "macro-f1"}, _of_predictions, {"MaskedAnswer", "LocalProtocolError"}),
    ],
)
def test_neither_length_nor_words_of_answers_follow_from_data(
    tmp_path: Path,
    keys: dict[str, Any],
    questions: Callable[[Adversary], Iterator[tuple[str, Request[Any]]]],
    kinds: set[str],
) -> None:
    one, other = (_all_seen(tmp_path / str(seed), seed, keys, questions) for seed in range(2))
    assert len(one) == len(other)
    for (name, seen), (_, as_well) in zip(one, other, strict=True):
        assert seen == as_well, name
    assert kinds <= {seen[0] for _, seen in one}


# ---- rows that the server passes on --------------------------------------------------------------


def _with_other_values(part: GraphPartition) -> GraphPartition:
    """Return a part with the same edges, and nothing else that is the same."""
    rng = np.random.default_rng(part.client)
    uses = rng.integers(3, size=part.num_inner)
    return replace(
        part,
        features=rng.normal(size=part.features.shape).astype(np.float32),
        labels=rng.integers(part.num_classes, size=part.num_inner).astype(part.labels.dtype),
        **{name: uses == at for at, name in enumerate(("train_mask", "val_mask", "test_mask"))},
    )


def _passed_on(folder: Path, *, is_other: bool) -> list[tuple[BlockKey, list[int]]]:
    """Return the lengths of all that is sent to peers, features first, then rows of weights."""
    folder.mkdir()
    found: list[tuple[BlockKey, list[int]]] = []
    send = MemoryChannel.send_block

    def sending(channel: MemoryChannel, key: BlockKey, frames: Sequence[bytes]) -> int:
        # Streams are encrypted, and as long as what they carry.
        found.append((replace(key, weights_digest=b""), [len(frame) for frame in frames]))
        return send(channel, key, frames)

    change = _with_other_values if is_other else _as_it_is
    keys = {
        "layers": 2,
        "codec": "dense",
        "relay": True,
        "engine": "deployment",
        "dataset": _graph(0),
    }
    server = Adversary.in_one_process(folder, CLIENTS, keys, change=change)
    size = num_weights(ModelShape.of_part(server.config, server.parts[0]), 0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MemoryChannel, "send_block", sending)
        server.meet()
        for value in (0.0, 1.0, 1e30, np.nan):
            made = np.full(size, value, np.float32)
            stage = server.ticket(stage=1, digest=chain_digest(server.first(), made))
            asked = PublishRequest(ticket=stage, previous_digest=server.first(), weights=made)
            for client in server.clients:
                client.ask(asked)
    return found


def test_what_a_relay_carries_has_the_length_that_the_plan_gives_it(tmp_path: Path) -> None:
    """Which nodes are next to which, by number, is what a server that relays is told."""
    one, other = (_passed_on(tmp_path / str(at), is_other=bool(at)) for at in range(2))
    assert one == other
    # All five exchanges, both ways between each two.
    assert len(one) == 5 * CLIENTS * (CLIENTS - 1)


# ---- sums of tables ------------------------------------------------------------------------------

LEAST_NODES = 5


def _table(path: Path, client: int, seed: int) -> TableSummary:
    """Return the summary of a table; two of the same client have named texts in common alone."""
    rng = np.random.default_rng(2 * client + seed)
    lines = ["key,label,balance,country,opened,empty"]
    for at in range((60, 90)[seed]):
        balance = (repr(float(at % 7 - 3)), repr(float(rng.normal() * 1e37)))[seed]
        country = (("DE", "FR", "MT") if seed else ("DE", "FR"))[int(rng.random() < 0.5)]
        opened = f"{2000 + at % 20}-0{1 + at % 9}-11" if rng.random() < 0.9 - 0.5 * seed else ""
        lines.append(f"n{seed}{at},{('no', 'yes')[at % 2]},{balance},{country},{opened},")
    rare = f"x,no,{'' if seed else 1},{('', 'MT')[seed]},{('', '1904-02-29')[seed]},"
    path.write_text("\n".join([*lines, rare, ""]))
    return summarise_table(path, ColumnChoice())


def _shares(folder: Path, seed: int) -> list[Asked]:
    folder.mkdir()
    identities, roster = make_members(folder, CLIENTS)
    agreement = agreed(roster, identities)
    found = []
    for client, identity in enumerate(identities):
        signer = signer_of(identity, roster, agreement)
        table = _table(folder / f"{client}.csv", client, seed)
        masked = MaskedShare(table, signer, least_clients=3, least_nodes=LEAST_NODES)
        found.append(Asked(SummaryShare(table, folder / f"{client}.toml", masked)))
    return found


def _of_tables(
    clients: Sequence[Asked], recipe: FeatureRecipe
) -> Iterator[tuple[str, Request[Any]]]:
    """Yield all questions about tables, and some that are refused."""
    ticket = Ticket(job="recipe-0", attempt=1)
    yield "sums too early", ColumnSumsRequest(ticket=ticket, columns=np.zeros(2, np.uint8))
    yield "columns", ColumnsRequest(ticket=ticket)
    told = [client.ask(ColumnsRequest(ticket=ticket)) for client in clients]
    keys = KeysRequest(
        ticket=ticket,
        agreement=Agreement.parse(told[0].agreement).digest,
        cohort=tuple(range(CLIENTS)),
        uses="nodes",
        keys=np.frombuffer(b"".join(answer.mask_key for answer in told), np.uint8),
        signatures=b"".join(answer.mask_signature for answer in told),
    )
    yield "keys of fewer", replace(keys, cohort=(0, 1))
    yield "keys", keys
    columns = json.loads(told[0].columns.tobytes())
    kinds = columns["columns"]
    for name, changed in (
        ("a text less", {**kinds, "country": {"kind": "texts", "texts": ["DE"]}}),
        ("another kind", {**kinds, "balance": {"kind": "texts", "texts": ["1.0"]}}),
        ("a column more", {**kinds, "age": {"kind": "numbers"}}),
        ("texts more", {**kinds, "country": {"kind": "texts", "texts": ["DE", "FR", "MT", "XX"]}}),
        ("a column less", {n: kind for n, kind in kinds.items() if n != "opened"}),
        ("all", kinds),
        ("numbers where none are", {**kinds, "empty": {"kind": "numbers"}}),
    ):
        content = json.dumps({**columns, "columns": changed}).encode()
        yield name, ColumnSumsRequest(ticket=ticket, columns=np.frombuffer(content, np.uint8))
    yield "no columns", ColumnSumsRequest(ticket=ticket, columns=np.zeros(2, np.uint8))
    number = recipe.numbers[0]
    for other in (
        replace(recipe, key_column="id"),
        replace(recipe, classes=("no", "maybe")),
        replace(recipe, numbers=(replace(number, column="country"),)),
        replace(recipe, numbers=(replace(number, column="empty"),)),
        recipe,
    ):
        content = other.to_toml().encode()
        yield "a recipe", RecipeRequest(ticket=ticket, recipe=np.frombuffer(content, np.uint8))


def test_neither_length_nor_words_of_answers_about_tables_follow_from_them(tmp_path: Path) -> None:
    both = [_shares(tmp_path / str(seed), seed) for seed in range(2)]
    tables = (summarise_table(tmp_path / str(0) / f"{c}.csv", ColumnChoice()) for c in range(3))
    recipe, _ = fit_recipe(merge_summaries([*tables]), RecipeTask(out=""))
    one, other = (
        [
            (name, _seen(partial(clients[0].ask, asked)))
            for name, asked in _of_tables(clients, recipe)
        ]
        for clients in both
    )
    assert len(one) == len(other)
    for (name, seen), (_, as_well) in zip(one, other, strict=True):
        assert seen == as_well, name
    kinds = [seen[0] for _, seen in one]
    assert {"ColumnsAnswer", "KeysAnswer", "RecipeAnswer", "ConfigurationError"} <= {*kinds}
    assert kinds.count("MaskedAnswer") == 1
