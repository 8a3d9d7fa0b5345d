from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.supercore.task_identity import TaskIdentity
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from retexo_fl.client import api
from retexo_fl.client.api import (
    QUESTIONS,
    BasisAnswer,
    BasisRequest,
    ChoiceAnswer,
    ChoiceRequest,
    CollectAnswer,
    CollectRequest,
    ColumnsAnswer,
    ColumnsRequest,
    ColumnSumsRequest,
    CountsAnswer,
    CountsRequest,
    EndAnswer,
    EndRequest,
    EvaluateAnswer,
    EvaluateRequest,
    GramAnswer,
    GramRequest,
    HelloAnswer,
    HelloRequest,
    IntroduceAnswer,
    IntroduceRequest,
    KeysAnswer,
    KeysRequest,
    LabelsAnswer,
    LabelsRequest,
    MaskedAnswer,
    PredictAnswer,
    PredictedAnswer,
    PredictedRequest,
    PredictRequest,
    PublishAnswer,
    PublishRequest,
    RecipeAnswer,
    RecipeRequest,
    RelayAnswer,
    RelayRequest,
    Request,
    StructureAnswer,
    StructureRequest,
    SummaryAnswer,
    SummaryRequest,
    Ticket,
    TrainAnswer,
    TrainRequest,
    WhitenAnswer,
    WhitenRequest,
    question_of,
)
from retexo_fl.errors import ClientFailed, EngineFailed, ExchangeIncomplete, RemoteProtocolError
from retexo_fl.federation import records
from retexo_fl.federation.records import content_volumes
from retexo_fl.ledger import PeerTraffic, Traffic, Volume

TICKET = Ticket(job="job-1", attempt=2, stage=1, round=7, weights_digest=b"\x00" * 32)
WEIGHTS = np.linspace(0, 1, 5)
TRAFFIC = Traffic(
    boundary=Volume(messages=2, raw=80, payload=8, wire=30),
    control=Volume(payload=3, wire=None),
)


@pytest.fixture(autouse=True)
def _identity() -> None:
    TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1


HELLO = HelloAnswer(
    version=1,
    client=3,
    num_clients=4,
    partitioning="p",
    nodes=9,
    train=1,
    validation=2,
    test=3,
    features=5,
    classes=2,
    vectors_out=7,
    vectors_in=8,
)
PARCELS = np.arange(5, dtype=np.uint8)
ROUND = PeerTraffic(sent=TRAFFIC)
REQUESTS: list[Request[Any]] = [
    HelloRequest(ticket=TICKET),
    IntroduceRequest(ticket=TICKET, roster="[[member]]"),
    BasisRequest(ticket=TICKET),
    GramRequest(ticket=TICKET),
    StructureRequest(ticket=TICKET),
    StructureRequest(ticket=TICKET, weights=WEIGHTS, steps=b"\x20\xf0"),
    WhitenRequest(ticket=TICKET, weights=WEIGHTS),
    BasisRequest(ticket=TICKET, weights=WEIGHTS, steps=b"\x20\xf0"),
    BasisRequest(ticket=TICKET, rows="own sums"),
    ChoiceRequest(ticket=TICKET, weights=WEIGHTS, steps=b"\x20\xf0", label_facts=(1.0, 2.0)),
    PublishRequest(ticket=TICKET),
    PublishRequest(ticket=TICKET, previous_digest=b"p" * 32, weights=WEIGHTS),
    RelayRequest(ticket=TICKET, trip=2**40, peers=(0, 3), sizes=(5, 0), parcels=PARCELS),
    RelayRequest(ticket=TICKET, trip=0, peers=(), sizes=(), parcels=PARCELS[:0]),
    CollectRequest(ticket=TICKET, wait_s=2.5, close=True),
    TrainRequest(ticket=TICKET, weights=WEIGHTS.astype(np.float32)),
    TrainRequest(ticket=TICKET, weights=WEIGHTS, steps=b"\x80\x00"),
    EvaluateRequest(ticket=TICKET, weights=WEIGHTS, nodes="test", last=True),
    PredictRequest(ticket=TICKET, weights=WEIGHTS, form="npz"),
    PredictedRequest(ticket=TICKET, form="npz", set_name="0" * 16),
    SummaryRequest(ticket=TICKET),
    ColumnsRequest(ticket=TICKET),
    ColumnSumsRequest(ticket=TICKET, columns=PARCELS),
    RecipeRequest(ticket=TICKET, recipe=PARCELS),
    TrainRequest(ticket=TICKET, weights=WEIGHTS),
    KeysRequest(ticket=TICKET, agreement=b"a", cohort=(0, 2, 5), keys=PARCELS),
    KeysRequest(
        ticket=TICKET,
        agreement=b"a" * 32,
        cohort=(0, 1, 2),
        uses="train",
        keys=PARCELS,
        signatures=b"s" * 192,
    ),
    CountsRequest(ticket=TICKET),
    LabelsRequest(ticket=TICKET),
    EndRequest(ticket=TICKET),
]
ANSWERS: list[object] = [
    HELLO,
    replace(HELLO, vectors_drawn=3, member="[[member]]"),
    IntroduceAnswer(members=3),
    PredictedAnswer(client=3, is_there=True),
    GramAnswer(sums=WEIGHTS, examples=3),
    StructureAnswer(sums=WEIGHTS, nodes=9),
    WhitenAnswer(features=65),
    BasisAnswer(sums=WEIGHTS, examples=4),
    ChoiceAnswer(sums=WEIGHTS, examples=4),
    PublishAnswer(vectors=4, traffic=TRAFFIC),
    PublishAnswer(vectors=4, traffic=TRAFFIC, error_bound=(2.0**-24,)),
    RelayAnswer(peers=(1,), sizes=(5,), parcels=PARCELS),
    RelayAnswer(peers=(), sizes=(), parcels=PARCELS[:0]),
    CollectAnswer(complete=True, missing=0, missing_peers=0, traffic=TRAFFIC),
    CollectAnswer(complete=False, missing=7, missing_peers=2, traffic=TRAFFIC),
    TrainAnswer(
        update_sum=WEIGHTS,
        examples=2**40,
        loss_sum=1e-30,
        validation_examples=3,
        validation_loss_sum=0.5,
        validation_correct=1,
        training_traffic=PeerTraffic(sent=TRAFFIC),
    ),
    EvaluateAnswer(examples=0, loss_sum=0.0, correct=0),
    EvaluateAnswer(examples=1, loss_sum=0.0, correct=0, cached=(3.0, 2.0, 1.0, 2.0**50, 0.0)),
    SummaryAnswer(summary=PARCELS),
    ColumnsAnswer(
        client=2,
        mask_key=b"k" * 32,
        mask_signature=b"s" * 64,
        agreement=b"{}",
        columns=PARCELS,
    ),
    RecipeAnswer(digest="0" * 64),
    KeysAnswer(digest=b"d" * 32),
    CountsAnswer(nodes=9, train=3, validation=2, test=4, vectors_out=2**40, vectors_in=7),
    LabelsAnswer(uses=(3, 0, 1), sums=(0.5,)),
    EndAnswer(client=3),
    KeysAnswer(digest=b""),
    MaskedAnswer(numbers=PARCELS, beside=b"w" * 8, moved=b"m" * 8),
    replace(HELLO, brings="nodes train", mask_key=b"k" * 32, mask_signature=b"s" * 64),
    PredictAnswer(
        nodes=2**40,
        train=1,
        train_correct=0,
        validation=3,
        validation_correct=2,
        test=5,
        test_correct=4,
    ),
]


def message(content: RecordDict, message_type: str = api.TRAIN.message_type) -> Message:
    return Message(content, dst_node_id=5, message_type=message_type)


def reply(content: RecordDict) -> Message:
    return Message(content, reply_to=message(RecordDict()))


def same(one: object, other: object) -> bool:
    fields = {name: getattr(one, name) for name in type(one).__dataclass_fields__}  # type: ignore[attr-defined]
    return type(one) is type(other) and all(
        np.array_equal(value, getattr(other, name))
        if isinstance(value, np.ndarray)
        else value == getattr(other, name)
        for name, value in fields.items()
    )


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda request: type(request).__name__)
def test_requests_survive_the_translation(request_: Request[Any]) -> None:
    kind = question_of(request_).message_type
    assert same(request_, records.read_request(message(records.request_content(request_), kind)))


@pytest.mark.parametrize("answer", ANSWERS, ids=lambda answer: type(answer).__name__)
def test_answers_survive_the_translation(answer: object) -> None:
    read = records.read_answer(type(answer), reply(records.answer_content(answer)))
    assert same(answer, read)


def test_records_are_those_that_flower_checks() -> None:
    """Also of a Flower whose records keep their values elsewhere."""
    values: dict[str, Any] = {
        "name": "a",
        "sums": [1.0, 2.5],
        "count": 3,
        "is": True,
        "bytes": b"\0",
        "of": [1, 2],
    }
    names = ("record", "weights")

    def filled(record: Any, values: dict[str, Any]) -> Any:
        return records._add(RecordDict(), names, record, values, None)["record"]

    found = filled(ConfigRecord(), values)
    assert found == ConfigRecord(values)
    assert found.deflate() == ConfigRecord(values).deflate()
    numbers: dict[str, Any] = {"count": 3, "sum": 0.5}
    assert filled(MetricRecord(), numbers) == MetricRecord(numbers)

    class Elsewhere(ConfigRecord):
        def __init__(self) -> None:
            super().__init__()
            vars(self)["_data"] = None
            self.kept: dict[str, Any] = {}

        def __setitem__(self, key: str, value: Any) -> None:
            self.kept[key] = value

    assert filled(Elsewhere(), values).kept == values


def test_every_question_is_among_those_that_are_translated() -> None:
    assert {question_of(request) for request in REQUESTS} == set(QUESTIONS.values())
    answers = {question.answer for question in QUESTIONS.values()}
    assert {type(answer) for answer in ANSWERS} == answers | {MaskedAnswer}


def test_train_answer_has_what_flowers_strategies_expect() -> None:
    answer = TrainAnswer(
        update_sum=WEIGHTS,
        examples=3,
        loss_sum=0.0,
        validation_examples=0,
        validation_loss_sum=0.0,
        validation_correct=0,
    )
    content = records.answer_content(answer)
    assert len(content.array_records) == 1
    (metrics,) = content.metric_records.values()
    assert metrics["num-examples"] == 3


def test_failure_is_raised_by_its_own_name() -> None:
    content = records.failure_content(ExchangeIncomplete("rows are missing"))
    with pytest.raises(ExchangeIncomplete, match="^client 4: rows are missing$"):
        records.raise_failure(reply(content), 4)


@pytest.mark.parametrize("name", ["KeyError", "annotations", "ClassVar"])
def test_failure_of_a_foreign_name_is_client_failed(name: str) -> None:
    content = RecordDict({"failure": ConfigRecord({"name": name, "message": "x"})})
    with pytest.raises(ClientFailed, match=f"client 4: {name}: x"):
        records.raise_failure(reply(content), 4)


def test_flowers_own_error_is_client_failed_in_one_line() -> None:
    failed = Message(Error(code=2, reason="a\n  b"), reply_to=message(RecordDict()))
    with pytest.raises(ClientFailed, match=r"^client 0: a b \(Flower error code 2\)$"):
        records.raise_failure(failed, 0)


def test_what_ray_lost_is_not_the_clients_failure() -> None:
    # As Flower's simulation hands on what Ray's client says.
    reason = "<class 'ray.exceptions.ActorUnavailableError'>:<'The actor 6903 is unavailable'>"
    failed = Message(Error(code=0, reason=reason), reply_to=message(RecordDict()))
    with pytest.raises(EngineFailed, match=r"^client 1: Ray lost the worker .*ActorUnavailable"):
        records.raise_failure(failed, 1)
    raised = "<class 'ray.exceptions.RayTaskError(ClientAppException)'>:<'no such file'>"
    failed = Message(Error(code=0, reason=raised), reply_to=message(RecordDict()))
    with pytest.raises(ClientFailed, match="no such file"):
        records.raise_failure(failed, 1)


FIRST = (
    PublishRequest(ticket=TICKET, previous_digest=b"\x01" * 32, weights=WEIGHTS),
    CollectRequest(ticket=TICKET, wait_s=2.5),
)
MAIN = TrainRequest(ticket=TICKET, weights=2 * WEIGHTS)


def test_requests_that_precede_one_survive_the_translation() -> None:
    carried = message(records.request_content(MAIN, FIRST), question_of(MAIN).message_type)
    assert same(records.read_request(carried), MAIN)
    assert [same(*pair) for pair in zip(records.read_first(carried), FIRST, strict=True)] == [
        True,
        True,
    ]
    # In a process several clients read the same content.
    assert len(records.read_first(carried)) == 2
    alone = message(records.request_content(MAIN), question_of(MAIN).message_type)
    assert records.read_first(alone) == []


def test_answers_that_precede_one_end_with_the_first_that_leaves_something_open() -> None:
    sent = PublishAnswer(vectors=3, traffic=TRAFFIC, error_bound=(0.5,))
    there = CollectAnswer(complete=True, missing=0, missing_peers=0, traffic=TRAFFIC)
    told = EvaluateAnswer(examples=3, loss_sum=0.5, correct=2)
    whole = reply(records.answer_content(told, [sent, there]))
    assert records.read_answers_first(FIRST, whole) == [sent, there]
    assert records.read_answer(EvaluateAnswer, whole) == told
    late = replace(there, complete=False, missing=2, missing_peers=1)
    assert records.read_answers_first(FIRST, reply(records.answer_content(None, [sent, late]))) == [
        sent,
        late,
    ]
    lacking = replace(sent, lacks_weights=True)
    assert records.read_answers_first(FIRST, reply(records.answer_content(None, [lacking]))) == [
        lacking
    ]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"question": "query.other"}, "message type 'query.other' is unknown"),
        ({"question": 3}, "message type 3 is unknown"),
        ({"more": 1}, r"unknown \['more'\]"),
        ({"wait-s": "x"}, "'wait-s' is 'x'"),
    ],
)
def test_requests_that_precede_one_are_checked(changes: dict[str, Any], expected: str) -> None:
    content = records.request_content(MAIN, FIRST)
    for key, value in changes.items():
        content.config_records["first-1"][key] = value
    with pytest.raises(RemoteProtocolError, match=expected):
        records.read_first(message(content))


def test_so_many_requests_may_precede_one() -> None:
    with pytest.raises(RemoteProtocolError, match="first-2: expected 2 requests first at most"):
        records.read_first(message(records.request_content(MAIN, (*FIRST, FIRST[1]))))
    content = RecordDict({"first-0": ArrayRecord()})
    with pytest.raises(RemoteProtocolError, match="first-0: expected"):
        records.read_first(message(content))


def test_an_answer_that_should_precede_one_is_missed() -> None:
    told = EvaluateAnswer(examples=3, loss_sum=0.5, correct=2)
    with pytest.raises(RemoteProtocolError, match="no record called 'first-0'"):
        records.read_answers_first(FIRST, reply(records.answer_content(told)))


def test_each_request_of_a_message_is_counted_by_itself() -> None:
    content = records.request_content(MAIN, FIRST)
    parts = records.split_content(content, 2)
    alone = [content_volumes(records.request_content(item)) for item in (MAIN, *FIRST)]
    for part, (weights, masks, other), asked in zip(parts, alone, (MAIN, *FIRST), strict=True):
        name = 0 if asked is MAIN else len("question") + len(question_of(asked).message_type)
        named = replace(other, payload=other.payload + name)
        assert content_volumes(part) == (weights, masks, named)
    # What nobody asked for is counted, too.
    assert records.split_content(content, 0) == [dict(content)]


def broken(**changes: Any) -> RecordDict:
    content = records.request_content(TrainRequest(ticket=TICKET, weights=WEIGHTS))
    for key, value in changes.items():
        if value is None:
            del content.config_records["retexo"][key]
        else:
            content.config_records["retexo"][key] = value
    return content


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"job": None}, "'job' is missing"),
        ({"round": "7"}, "'round' is '7'; expected a count"),
        ({"more": 1}, r"unknown \['more'\]"),
        ({"stage": True}, "'stage' is True"),
    ],
)
def test_settings_of_another_type_are_refused(changes: dict[str, Any], expected: str) -> None:
    with pytest.raises(RemoteProtocolError, match=expected):
        records.read_request(message(broken(**changes)))


@pytest.mark.parametrize("arrays", [{}, {"a": WEIGHTS}, {"weights": WEIGHTS, "b": WEIGHTS}])
def test_other_arrays_are_refused(arrays: dict[str, np.ndarray]) -> None:
    record = ArrayRecord({name: Array(item) for name, item in arrays.items()})
    with pytest.raises(RemoteProtocolError, match="expected one called 'weights'"):
        records.weights_of(record)


def test_weights_of_two_dimensions_are_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="expected one dimension"):
        records.weights_of(records.weights_record(np.zeros((2, 2))))


def test_content_volumes_count_tensor_bytes_and_the_rest() -> None:
    content = records.request_content(TrainRequest(ticket=TICKET, weights=WEIGHTS))
    weights, masks, other = content_volumes(content)
    assert not masks.payload
    assert (weights.raw, weights.payload, weights.wire) == (40, 40, None)
    # job, attempt, stage, round, weights-digest: their names, 5 characters, 3 numbers, 32 bytes.
    assert other.payload == (3 + 7 + 5 + 5 + 14) + 5 + 3 * 8 + 32


FLOATS = st.sampled_from([np.float32, np.float64])


@given(arrays(dtype=FLOATS, shape=st.integers(0, 20)))
def test_pack_writes_what_flower_writes_and_unpack_reads_it(values: np.ndarray) -> None:
    packed, flower = pack(values), Array(values)
    assert (packed.dtype, packed.shape, packed.stype) == (
        flower.dtype,
        flower.shape,
        flower.stype,
    )
    assert packed.data == flower.data
    for array in (packed, flower):
        result = records.unpack(array)
        assert result.dtype == values.dtype
        assert result.tobytes() == values.tobytes()


def test_pack_of_a_view_takes_its_values_only() -> None:
    assert records.unpack(pack(np.arange(6.0)[::2])).tolist() == [0.0, 2.0, 4.0]


def test_unpack_gives_a_view_that_cannot_be_changed() -> None:
    packed = pack(np.ones(3))
    result = records.unpack(packed)
    assert not result.flags.writeable
    assert np.shares_memory(result, np.frombuffer(packed.data, np.uint8))


def pack(values: np.ndarray) -> Array:
    return records.weights_record(values)["weights"]


def altered(**changes: object) -> Array:
    good = pack(np.arange(3.0))
    given_ = {name: getattr(good, name) for name in ("dtype", "shape", "stype", "data")}
    return Array(**(given_ | changes))


def objects() -> bytes:
    stream = io.BytesIO()
    np.save(stream, np.array(["x"], dtype=object), allow_pickle=True)
    return stream.getvalue()


@pytest.mark.parametrize(
    ("array", "said"),
    [
        (altered(stype="torch"), "not a .npy array"),
        (altered(data=b""), "not a .npy array"),
        (altered(data=b"PK\x03\x04" + bytes(100)), "not a .npy array"),
        (altered(data=pack(np.arange(3.0)).data[:40]), "not a .npy array"),
        (altered(data=b"\x93NUMPY\x01\x00\x40\x00" + b"import os".ljust(63) + b"\n"), "not a .npy"),
        (
            altered(data=pack(np.arange(3.0)).data[:10] + b"(".ljust(117) + b"\n"),
            "not a .npy array",
        ),
        (altered(shape=(4,)), "announced as"),
        (altered(dtype="float32"), "announced as"),
        (altered(dtype="object", shape=(1,), data=objects()), "not that of a float array"),
        (pack(np.arange(3)), "not that of a float array"),
        (altered(data=pack(np.arange(3.0)).data[:-1]), "151 bytes"),
        (altered(data=pack(np.arange(3.0)).data + b"x"), "153 bytes"),
    ],
)
def test_unpack_refuses_what_is_not_one_whole_float_array(array: Array, said: str) -> None:
    with pytest.raises(RemoteProtocolError, match=said):
        records.unpack(array)


@given(st.binary(max_size=200))
def test_unpack_of_any_bytes_fails_by_name(data: bytes) -> None:
    head = pack(np.arange(3.0)).data[:10]
    for candidate in (data, head + data):
        with pytest.raises(RemoteProtocolError):
            records.unpack(altered(data=candidate))
