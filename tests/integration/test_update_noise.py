"""Trainings with noise, in rounds and in one shot: what leaves, that it repeats, and refusals."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from retexo_fl.agent.admission import admit
from retexo_fl.agent.limits import Limits
from retexo_fl.client.api import BasisRequest, GramRequest, Ticket
from retexo_fl.client.factory import InProcessClients
from retexo_fl.client.masks import ClientMasks
from retexo_fl.client.preparation import load_parts, make_parts
from retexo_fl.config import config_values, default_values
from retexo_fl.config.profiles import profile_values
from retexo_fl.errors import ConfigurationError, LocalProtocolError
from retexo_fl.gaussian_privacy import NoisedReleases
from retexo_fl.masking.discrete_gaussian import discrete_gaussian
from retexo_fl.masking.streams import Sums
from retexo_fl.methods.keys import check_algorithm
from retexo_fl.methods.pieces.basis.answers import BasisClient
from retexo_fl.training.basis import BasisBuilder
from retexo_fl.training.clipped_products import clipped_sums, noised_step
from retexo_fl.training.layer_trainer import LayerTrainer
from retexo_fl.training.ridge import noised_fit
from retexo_fl.updates.masked import steps_changed
from tests.support.cli import CommandLine
from tests.support.runs import Interrupter, configured, model_bytes, result_of, train
from tests.support.ways import profile_keys

KEYS: dict[str, Any] = {
    **{"clients": 3, "hidden": 4, "rounds": 3, "model": "sage", "secure_aggregation": "masked"},
    **{"update_dp": 8.0, "update_dp_clip": 0.5, "learning_rate": 0.05, "dropout": 0.0},
}
#: Solved from sums: two blocks of a basis, and products.
ONE_SHOT: dict[str, Any] = {
    **profile_keys("one-shot"),
    **{"clients": 3, "model": "sage", "secure_aggregation": "masked"},
    **{"update_dp": 8.0, "update_dp_clip": 0.5},
}
#: By name, keys; what is asked of train nodes; how many releases that is.
NOISED = {
    "updates": (KEYS, ("TrainRequest",), 6),
    "one shot": (ONE_SHOT, ("BasisRequest", "GramRequest"), 3),
    "one shot, no basis": ({**ONE_SHOT, "basis": "none"}, ("GramRequest",), 1),
}
ALL = pytest.mark.parametrize("name", NOISED)
NO_NOISE = {"update_dp": 0.0}

Told = dict[tuple[str, int, int, int], list[bytes]]


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Told:
    """What clients add to sums before masks, by question, stage, round and client, in order."""
    found: Told = {}
    hidden = ClientMasks._hidden

    def noted(self: ClientMasks, request: Any, numbers: Any, **more: Any) -> Any:
        if isinstance(numbers, Sums) and not more.get("what"):
            place = type(request).__name__, request.ticket.stage, request.ticket.round, self._client
            found.setdefault(place, []).append(
                b"".join(
                    piece.tobytes() for piece in (numbers.narrow, numbers.wide, numbers.counts)
                )
            )
        return hidden(self, request, numbers, **more)

    monkeypatch.setattr(ClientMasks, "_hidden", noted)
    return found


@pytest.mark.parametrize(("name", "event"), [("updates", 4), ("one shot", 2)])
def test_two_resumes_send_identical_bytes(
    tmp_path: Path, told: Told, name: str, event: int
) -> None:
    keys, asked, _ = NOISED[name]
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "run", Interrupter(event), **keys)
    begun = set(told)
    # What the round that was cut off had sent, is asked for again.
    copies = [tmp_path / "one", tmp_path / "other"]
    for copy in copies:
        shutil.copytree(tmp_path / "run", copy)
        train(copy, **keys, resume=copy)
    later = {place: sent for place, sent in told.items() if place not in begun}
    assert {stage for name, stage, *_ in later if name == asked[-1]} >= {1}
    for place, sent in told.items():
        if place[0] in asked:
            assert len({*sent}) == 1, place
    assert all(len(sent) == 2 for place, sent in later.items() if place[0] == asked[-1])
    assert model_bytes(copies[0]) == model_bytes(copies[1])
    assert (copies[0] / "noise.key").read_bytes() == (tmp_path / "run/noise.key").read_bytes()


@pytest.mark.parametrize("name", ["updates", "one shot"])
def test_two_runs_have_other_noise_whatever_their_seed(tmp_path: Path, name: str) -> None:
    runs = [train(tmp_path / out, **NOISED[name][0]) for out in ("one", "other")]
    assert model_bytes(runs[0]) != model_bytes(runs[1])


@ALL
def test_what_leaves_follows_from_train_labels_by_noised_sums_alone(
    tmp_path: Path, told: Told, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    keys, asked, _ = NOISED[name]

    def without_noise(self: Any, request: Any, numbers: Sums, told: bytes, honest: int) -> Sums:
        del self, told
        assert honest == 3
        # Behind those of train nodes are as many products of validation nodes, and one number.
        size = len(numbers.narrow) // (2 if isinstance(request, GramRequest) else 1)
        numbers.narrow[:size] = 0
        return numbers

    monkeypatch.setattr("retexo_fl.client.noise.UpdateNoise.added", without_noise)
    # The server's basis is of zeros then; what clients compute with it would follow from labels.
    monkeypatch.setattr(BasisBuilder, "add", _any_block)
    found = []
    parts = load_parts(configured(tmp_path / "unused", **keys))
    for shift in (0, 1):
        told.clear()
        for part in parts:
            labels = np.array(part.labels)
            labels[part.train_mask] = (labels[part.train_mask] + shift) % part.num_classes
            object.__setattr__(part, "labels", labels)
        config = configured(tmp_path / f"run{shift}", **keys)
        from retexo_fl.simulation.inline_engine import run_inline

        run_inline(config, parts, [])
        found.append(dict(told))
    others = {"CountsRequest", "LabelsRequest", "EvaluateRequest"}
    assert {place[0] for place in found[0]} == {*others, *asked}
    assert found[0] == found[1]


def _any_block(self: BasisBuilder, sums: np.ndarray) -> None:
    made = np.random.default_rng(len(self._blocks)).normal(size=sums.shape)
    self._blocks.append(np.linalg.qr(made)[0].astype(np.float32))


def test_masked_sums_of_one_shot_are_the_fixed_point_sums_and_the_same_noise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clear: list[np.ndarray] = []
    noise: list[np.ndarray] = []
    solved: list[np.ndarray] = []

    def summed(*args: Any) -> np.ndarray:
        clear.append(clipped_sums(*args))
        return clear[-1]

    def drawn(*args: Any) -> np.ndarray:
        noise.append(discrete_gaussian(*args))
        return noise[-1]

    def fitted(sums: np.ndarray, **more: Any) -> Any:
        solved.append(sums)
        return noised_fit(sums, **more)

    monkeypatch.setattr("retexo_fl.methods.ridge.answers.clipped_sums", summed)
    monkeypatch.setattr("retexo_fl.client.noise.discrete_gaussian", drawn)
    monkeypatch.setattr("retexo_fl.methods.ridge.script.noised_fit", fitted)
    train(tmp_path / "run", **{**ONE_SHOT, "basis": "none"})
    assert (len(clear), len(noise), len(solved)) == (3, 3, 1)
    size = len(noise[0])
    unit = noised_step(ONE_SHOT["update_dp_clip"], size).unit
    numbers = np.sum([np.rint(one / unit) for one in clear], axis=0)
    numbers[:size] += np.sum(noise, axis=0)
    assert np.array_equal(solved[0], numbers * unit)
    # Noise of all clients together, as is promised of them.
    releases = NoisedReleases(epsilon=8.0, delta=1e-5, clip=0.5, count=1)
    promised = releases.sigma * steps_changed(0.5, size)
    assert np.std(np.sum(noise, axis=0)) / promised == pytest.approx(1, abs=4 / (2 * size) ** 0.5)


def test_a_basis_under_noise_is_asked_for_no_sums_of_features(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BasisClient, "_admit_to_sum", lambda *args: None)
    config = configured(tmp_path, **ONE_SHOT)
    clients = InProcessClients(make_parts(config), config)
    ticket = Ticket(job="job-0123456789ab", attempt=1)
    client = clients.find(ticket.job, 0)
    assert isinstance(client, BasisClient)
    with pytest.raises(LocalProtocolError, match="asked for sums of features; expected none und"):
        client.basis(BasisRequest(ticket=ticket))
    clients.close()


@ALL
def test_one_that_could_not_compute_its_sums_still_adds_its_noise(
    tmp_path: Path, told: Told, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    keys, asked, _ = NOISED[name]

    def failing(*args: Any, **more: Any) -> None:
        raise MemoryError

    monkeypatch.setattr(LayerTrainer, "update", failing)
    monkeypatch.setattr(BasisClient, "_basis_sums", failing)
    monkeypatch.setattr("retexo_fl.methods.ridge.answers.clipped_sums", failing)
    with pytest.raises(Exception, match="could not be computed"):
        train(tmp_path / "run", **keys)
    sent = {place: one for place, one in told.items() if place[0] == asked[0]}
    assert len(sent) == 3
    for (one,) in sent.values():
        # Noise of products is of the first half of them.
        of_train = one[: len(one) // (2 if asked[0] == "GramRequest" else 1)]
        assert np.count_nonzero(np.frombuffer(of_train, np.uint8)) > len(of_train) // 4


@ALL
def test_result_and_log_say_what_is_promised(tmp_path: Path, name: str) -> None:
    keys, _, count = NOISED[name]
    run = train(tmp_path / "run", **keys)
    what = "loss has" if name == "updates" else "products have"
    release = "sum, by" if count == 1 else "sums, by" if name != "updates" else "updates, by"
    expected = (
        f"each train node's own {what} an epsilon of 8 with delta 1e-05 over at most {count} "
        f"{release} noise of {NoisedReleases(epsilon=8, delta=1e-5, clip=1, count=count).sigma:.4g}"
    )
    assert any(line.startswith(expected) for line in result_of(run)["warnings"])
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert {line["loss"] for line in lines if line["event"] == "round"} == {None}


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        (
            {"secure_aggregation": "none"},
            "secure-aggregation 'none'; expected secure-aggregation m",
        ),
        (
            {"model": "gat", "heads": 2},
            "model 'gat'; expected model sage or gcn or dir-sage or dir-gcn, ",
        ),
        ({"optimizer": "lbfgs"}, "optimizer 'lbfgs'; expected optimizer adam or sgd or "),
        ({"candidates": "own-row"}, "candidates 'own-row'; expected candidates none, which co"),
        ({"floor": "one-shot"}, "floor 'one-shot'; expected floor none, which adds up"),
        ({"basis": "supervised"}, "basis 'supervised'; expected basis none, or solver ridge, w"),
        ({"solver": "ridge"}, "ridge-penalty 'gcv'; expected ridge-penalty validation, since"),
        (
            {**ONE_SHOT, "basis_rows": "choose"},
            "basis-rows 'choose'; expected basis-rows own or sums, since a comparison adds up",
        ),
        ({**ONE_SHOT, "candidates": "own-row"}, "candidates 'own-row'; expected candidates none"),
        ({**ONE_SHOT, "secure_aggregation": "none"}, "secure-aggregation 'none'; expected secure"),
        ({"local_steps": 2}, "local-steps 2; expected local-steps 1, whose update"),
        ({"update_bits": 8}, "update-bits 8; expected update-bits 32, since steps"),
        ({"last_rounds": 9}, "last-rounds 9; expected last-rounds 0, since epsilon"),
        ({"algorithm": "drop"}, "algorithm 'drop'; expected algorithm lazy, where a train"),
        ({"class_weights": "balanced"}, "class-weights 'balanced'; expected class-weights none, "),
        ({"structure": "labels"}, "structure 'labels'; expected structure columns or degrees, "),
        ({"loss": "focal:2"}, "loss 'focal:2'; expected loss cross-entropy or auto, whose"),
        ({"model": "gin"}, "model 'gin'; expected model sage or gcn or dir-sage or dir-gcn, "),
        ({"devices": "cpu:2"}, "devices 'cpu:2'; expected devices auto or cpu, where"),
        (
            {"task": "multi-label"},
            "task 'multi-label'; expected task classes, whose loss is of one node",
        ),
    ],
)
def test_what_would_leave_without_noise_is_refused(
    tmp_path: Path, keys: dict[str, Any], expected: str
) -> None:
    config = configured(tmp_path, **{**KEYS, **keys})
    with pytest.raises(ConfigurationError, match=f"update-dp: 8 does not go with {expected}"):
        check_algorithm(config_values(config))
    check_algorithm({**config_values(config), "update-dp": 0.0})


def test_noise_too_large_for_its_numbers_is_refused(tmp_path: Path) -> None:
    config = configured(tmp_path, **{**KEYS, "update_dp": 0.001, "rounds": 999})
    with pytest.raises(
        ConfigurationError, match="update-dp: 0.001 for 1998 updates takes noise of"
    ):
        check_algorithm(config_values(config))
    config = configured(tmp_path, **{**ONE_SHOT, "update_dp": 0.0005, "basis_blocks": 64})
    expected = "update-dp: 0.0005 for 65 sums takes noise of .*: fewer basis-blocks, or a larger"
    with pytest.raises(ConfigurationError, match=expected):
        check_algorithm(config_values(config))


def test_noise_brings_masks_and_the_papers_schedule() -> None:
    chosen = {"update-dp": 4.0}
    values = {**default_values(), **profile_values("retexo", chosen), **chosen}
    assert (values["secure-aggregation"], values["optimizer"]) == ("masked", "adam")
    check_algorithm(values)
    assert profile_values("retexo", {"update-dp": 0.0}) == profile_values("retexo")


def test_noise_leaves_one_shot_without_a_basis() -> None:
    chosen = {"update-dp": 4.0, "model": "gcn"}
    values = {**default_values(), **profile_values("one-shot", chosen), **chosen}
    assert (values["secure-aggregation"], values["basis"]) == ("masked", "none")
    check_algorithm(values)
    assert profile_values("one-shot", {"update-dp": 0.0}) == profile_values("one-shot")
    # What is said of a basis is not dropped.
    kept = {**chosen, "basis-blocks": 2}
    values = {**default_values(), **profile_values("one-shot", kept), **kept}
    assert (values["secure-aggregation"], values["basis"]) == ("masked", "supervised")
    check_algorithm(values)


@pytest.mark.parametrize(
    ("keys", "limits", "expected"),
    [
        (NO_NOISE, {"max_epsilon": 4.0}, "update-dp: 0; expected noise with an epsilon of at mos"),
        ({}, {"max_epsilon": 4.0}, "update-dp: 8 with delta 1e-05 is an epsilon of 8 with delta "),
        ({}, {"max_epsilon": 8.0, "max_epsilon_delta": 1e-7}, "is an epsilon of 9.5"),
        ({}, {"max_epsilon": 8.0}, ""),
        (NO_NOISE, {}, ""),
    ],
)
def test_an_owner_who_sets_a_most_has_only_runs_within_it(
    tmp_path: Path, keys: dict[str, Any], limits: dict[str, Any], expected: str
) -> None:
    config = configured(tmp_path, **{**KEYS, **keys})
    part = load_parts(config)[0]
    for predicts in (False, True):
        if expected:
            with pytest.raises(ConfigurationError, match=f"client 0: .*{expected}"):
                admit(config_values(config), part, Limits(**limits), predicts=predicts)
        else:
            admit(config_values(config), part, Limits(**limits), predicts=predicts)


def test_an_agents_file_has_a_most_that_can_be(tmp_path: Path) -> None:
    wrong: tuple[tuple[dict[str, Any], str], ...] = (
        ({"max_epsilon": -1.0}, "max-epsilon: got -1.0; expected 0 to 100"),
        ({"max_epsilon_delta": 0.0}, "max-epsilon-delta: got 0.0; expected above 0, below 1"),
    )
    for keys, expected in wrong:
        with pytest.raises(ConfigurationError, match=expected):
            Limits(**keys)


@pytest.mark.parametrize(("profile", "enough"), [("one-shot", 16), ("retexo", 26)])
def test_a_plan_says_where_noise_is_expected_to_cost_more_than_all_edges_across(
    retexo: CommandLine, profile: str, enough: int
) -> None:
    # 201 train nodes.
    graph = "synthetic:nodes=400,edges=900,classes=3,features=24,words=6,signal=0.6"
    asked = ["--dataset", graph, "--split", "random:0.5/0.2/0.3", "--clients", "3"]
    asked += ["--profile", profile, "--model", "sage"]
    for epsilon in (enough, enough - 2):
        told = " ".join(retexo.done("plan", *asked, "--update-dp", str(epsilon)).split())
        expected = (
            f"of 201 train nodes and an epsilon of {epsilon} expect less accuracy than without "
            "edges across (--algorithm drop)"
        )
        assert (expected in told) == (epsilon < enough)
        assert ("and compare both on validation nodes" in told) == (epsilon >= enough)
