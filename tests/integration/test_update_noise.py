"""Trainings whose updates have noise: what leaves, that it repeats, and what is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from retexo_fl.agent.admission import admit
from retexo_fl.agent.limits import Limits
from retexo_fl.client.masks import ClientMasks
from retexo_fl.client.preparation import load_parts
from retexo_fl.config import config_values, default_values
from retexo_fl.config.profiles import profile_values
from retexo_fl.errors import ConfigurationError
from retexo_fl.masking.streams import Sums
from retexo_fl.methods.keys import check_algorithm
from retexo_fl.training.layer_trainer import LayerTrainer
from tests.support.runs import Interrupter, configured, model_bytes, result_of, train

KEYS: dict[str, Any] = {
    **{"clients": 3, "hidden": 4, "rounds": 3, "model": "sage", "secure_aggregation": "masked"},
    **{"update_dp": 8.0, "update_dp_clip": 0.5, "learning_rate": 0.05, "dropout": 0.0},
}
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


def test_two_resumes_send_identical_bytes(tmp_path: Path, told: Told) -> None:
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "run", Interrupter(4), **KEYS)
    begun = set(told)
    # What the round that was cut off had sent, is asked for again.
    copies = [tmp_path / "one", tmp_path / "other"]
    for copy in copies:
        shutil.copytree(tmp_path / "run", copy)
        train(copy, **KEYS, resume=copy)
    later = {place: sent for place, sent in told.items() if place not in begun}
    assert {stage for name, stage, *_ in later if name == "TrainRequest"} >= {1}
    for place, sent in told.items():
        if place[0] == "TrainRequest":
            assert len({*sent}) == 1, place
    assert all(len(sent) == 2 for place, sent in later.items() if place[0] == "TrainRequest")
    assert model_bytes(copies[0]) == model_bytes(copies[1])
    assert (copies[0] / "noise.key").read_bytes() == (tmp_path / "run/noise.key").read_bytes()


def test_two_runs_have_other_noise_whatever_their_seed(tmp_path: Path) -> None:
    runs = [train(tmp_path / name, **KEYS) for name in ("one", "other")]
    assert model_bytes(runs[0]) != model_bytes(runs[1])


def test_what_leaves_follows_from_train_labels_by_noised_updates_alone(
    tmp_path: Path, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without_noise(self: Any, request: Any, numbers: Sums, told: bytes, honest: int) -> Sums:
        del self, request, told
        assert honest == 3
        numbers.narrow[:] = 0
        return numbers

    monkeypatch.setattr("retexo_fl.client.noise.UpdateNoise.added", without_noise)
    found = []
    parts = load_parts(configured(tmp_path / "unused", **KEYS))
    for shift in (0, 1):
        told.clear()
        for part in parts:
            labels = np.array(part.labels)
            labels[part.train_mask] = (labels[part.train_mask] + shift) % part.num_classes
            object.__setattr__(part, "labels", labels)
        config = configured(tmp_path / f"run{shift}", **KEYS)
        from retexo_fl.simulation.inline_engine import run_inline

        run_inline(config, parts, [])
        found.append(dict(told))
    assert {name for name, *_ in found[0]} == {
        *("CountsRequest", "LabelsRequest", "TrainRequest", "EvaluateRequest")
    }
    assert found[0] == found[1]


def test_one_that_could_not_compute_its_update_still_adds_its_noise(
    tmp_path: Path, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(self: LayerTrainer, *args: Any, **more: Any) -> None:
        raise MemoryError

    monkeypatch.setattr(LayerTrainer, "update", failing)
    with pytest.raises(Exception, match="could not be computed"):
        train(tmp_path / "run", **KEYS)
    sent = {place: one for place, one in told.items() if place[0] == "TrainRequest"}
    assert len(sent) == 3
    for (one,) in sent.values():
        assert np.count_nonzero(np.frombuffer(one, np.uint8)) > len(one) // 4


def test_result_and_log_say_what_is_promised(tmp_path: Path) -> None:
    run = train(tmp_path / "run", **KEYS)
    expected = "each train node's own loss has an epsilon of 8 with delta 1e-05 over at most 6 upda"
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
        ({"basis": "supervised"}, "basis 'supervised'; expected basis none, which adds up"),
        ({"solver": "ridge"}, "solver 'ridge'; expected solver rounds, whose sums have noise"),
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


def test_noise_brings_masks_and_the_papers_schedule() -> None:
    chosen = {"update-dp": 4.0}
    values = {**default_values(), **profile_values("retexo", chosen), **chosen}
    assert (values["secure-aggregation"], values["optimizer"]) == ("masked", "adam")
    check_algorithm(values)
    assert profile_values("retexo", {"update-dp": 0.0}) == profile_values("retexo")


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
