"""The last two layers trained together, after each was trained by itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import retexo_fl
from retexo_fl.client.preparation import given_graph, make_parts
from retexo_fl.errors import RunDirectoryError
from retexo_fl.training import joint
from retexo_fl.training.selection import Score
from tests.support.agents import agents, train_with
from tests.support.limits import PERMISSIVE
from tests.support.loopback import free_ports
from tests.support.runs import (
    configured,
    events_of,
    largest_difference,
    ledger_of,
    model_bytes,
    model_weights,
    result_of,
    stop_after,
    train,
)
from tests.support.typed_graphs import BANK, bank
from tests.support.ways import profile_keys

REFINED: dict[str, Any] = {**BANK, "hidden": 8, "unlabelled_types": "refined", "rounds": 4}
EXACT: dict[str, Any] = {**REFINED, "dtype": "float64", "partitioner": "random"}
LEAN: dict[str, Any] = {**profile_keys("lean"), **REFINED, "clients": 4, "partitioner": "random"}


@pytest.fixture
def always_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the best of what is trained last be kept, however good."""
    monkeypatch.setattr(Score, "clearly_beats", lambda score, other: True)


def kept(run: Path) -> str:
    return str(result_of(run)["stages"][-1]["candidate"])


@pytest.mark.usefixtures("always_kept")
@pytest.mark.parametrize("model", ["rel-sage", "rel-gcn"])
def test_a_round_is_a_step_along_the_gradient_of_the_whole_graphs_loss(
    tmp_path: Path, model: str
) -> None:
    step: dict[str, Any] = {"rounds": 1, "optimizer": "sgd", "learning_rate": 0.1}
    keys = {**EXACT, "model": model, "dropout": 0.0, "weight_decay": 0.0, "clients": 3, **step}
    refined = train(tmp_path / "refined", **keys)
    assert kept(refined) == joint.REFINED
    trained = train(tmp_path / "trained", **{**keys, "unlabelled_types": "trained"})
    whole = configured(tmp_path / "whole", **{**keys, "clients": 1})
    (part,) = make_parts(whole)
    order = np.argsort(given_graph(bank(), whole).node_keys, kind="stable")
    both = retexo_fl.Run.open(trained, allow_plugins=True).model()
    both.requires_grad_(True)
    nodes = np.flatnonzero(part.train_mask)
    logits = both(bank())[torch.from_numpy(order[nodes])]
    loss = torch.nn.functional.cross_entropy(logits, torch.from_numpy(part.labels[nodes]))
    loss.backward()  # type: ignore[no-untyped-call]
    before, after = model_weights(trained), model_weights(refined)
    moved = 0
    for layer, stage in enumerate(both.stages):
        for name, parameter in stage.named_parameters():
            gradient = np.zeros(parameter.shape) if parameter.grad is None else parameter.grad
            taken = after[f"refined-{layer}/{name}"] - before[f"layer-{layer}/{name}"]
            np.testing.assert_allclose(taken, -0.1 * np.asarray(gradient), atol=1e-12)
            moved += int(np.count_nonzero(taken))
    assert moved > 100


@pytest.mark.usefixtures("always_kept")
@pytest.mark.parametrize(
    "keys",
    [
        {"dropout": 0.5},
        {"layers": 3, "model": "rel-gcn", "dropout": 0.5},
        {"basis": "supervised", "basis_blocks": 2, "warm_start": True, "candidates": "auto"},
        {"local_steps": 2, "local_correction": "scaffold", "local_optimizer": "sgd"},
    ],
    ids=str,
)
def test_any_cut_refines_the_weights_of_one(tmp_path: Path, keys: dict[str, Any]) -> None:
    # Of several local steps sums over one partition are another training than over many.
    cuts = (2, 2) if "local_steps" in keys else (1, 3, 7)
    runs = [
        train(tmp_path / f"{at}", **{**EXACT, **keys, "clients": clients})
        for at, clients in enumerate(cuts)
    ]
    assert {kept(run) for run in runs} == {joint.REFINED}
    for run in runs[1:]:
        assert largest_difference(runs[0], run) < 1e-9


@pytest.mark.parametrize("beats", [True, False])
def test_it_is_kept_where_it_is_clearly_better_on_validation_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, beats: bool
) -> None:
    if not beats:
        monkeypatch.setattr(Score, "clearly_beats", lambda score, other: False)
    run = train(tmp_path / "run", **LEAN)
    last = result_of(run)["stages"][-1]
    by_themselves, together = last["tried"]
    assert (by_themselves["name"], together["name"]) == ("layer by layer", joint.REFINED)
    assert together["val_accuracy"] > by_themselves["val_accuracy"]
    assert last["candidate"] == (joint.REFINED if beats else "layer by layer")
    weights = model_weights(run)
    refined = {name for name in weights if name.startswith("refined")}
    as_before = {
        name
        for name in refined
        if np.array_equal(weights[name], weights[name.replace("refined", "layer")])
    }
    # The head of the first layer has no part in it.
    assert as_before == ({"refined-0/head.bias", "refined-0/head.weight"} if beats else refined)


@pytest.mark.usefixtures("always_kept")
def test_nothing_crosses_for_it(tmp_path: Path) -> None:
    run = train(tmp_path / "run", **LEAN)
    trained = train(tmp_path / "trained", **{**LEAN, "unlabelled_types": "trained"})
    one, other = (ledger_of(path).sum(kind="boundary") for path in (run, trained))
    assert (one.raw, one.payload) == (other.raw, other.payload)
    assert result_of(run)["plan"]["predicted_raw"]["boundary"] == one.raw


@pytest.mark.usefixtures("always_kept")
def test_the_model_that_predicts_is_the_one_that_was_tested(tmp_path: Path) -> None:
    run = train(tmp_path / "run", **{**EXACT, "clients": 3})
    whole = configured(tmp_path / "whole", **{**EXACT, "clients": 1})
    (part,) = make_parts(whole)
    order = np.argsort(given_graph(bank(), whole).node_keys, kind="stable")
    logits = retexo_fl.Run.open(run, allow_plugins=True).model()(bank()).numpy()[order]
    nodes = np.flatnonzero(part.test_mask)
    right = (logits[nodes].argmax(axis=1) == part.labels[nodes]).mean()
    assert right == pytest.approx(result_of(run)["test_accuracy"])
    missing = run / "model" / "refined-1.safetensors"
    missing.unlink()
    with pytest.raises(RunDirectoryError, match="refined-1.safetensors: cannot be read"):
        retexo_fl.Run.open(run, allow_plugins=True).model()


@pytest.mark.usefixtures("always_kept")
@pytest.mark.parametrize("profile", [profile_keys("lean"), {}], ids=["lean", "retexo"])
def test_masks_change_nothing_and_a_run_resumes_within_it(
    tmp_path: Path, profile: dict[str, Any]
) -> None:
    keys = {**profile, **REFINED, "clients": 4, "partitioner": "random", "rounds": 5}
    plain = train(tmp_path / "plain", **keys)
    masked = train(tmp_path / "masked", **keys, secure_aggregation="masked")
    if not profile:
        assert largest_difference(plain, masked) < 1e-4
    for name, whole, masks in (("plain", plain, "none"), ("masked", masked, "masked")):
        for last in (1, 3):
            out = tmp_path / f"{name}-{last}"
            with pytest.raises(KeyboardInterrupt):
                train(out, stop_after(last, stage=2), **keys, secure_aggregation=masks)
            train(out, **keys, secure_aggregation=masks, resume=out)
            assert model_bytes(out) == model_bytes(whole)
            assert [e["round"] for e in events_of(out) if e.get("stage") == 2 and "loss" in e]


@pytest.mark.usefixtures("always_kept")
def test_more_rounds_are_more_rounds_of_it(tmp_path: Path) -> None:
    out = train(tmp_path / "run", **{**EXACT, "clients": 2})
    assert result_of(out)["stages"][-1]["rounds"] == 4
    longer = retexo_fl.Run.open(out, allow_plugins=True).extend(rounds=3, quiet=True)
    assert longer.result.stages[-1].rounds == 7


@pytest.mark.system
@pytest.mark.parametrize("masks", ["none", "masked"])
def test_agents_refine_the_bits_of_one_process(tmp_path: Path, masks: str) -> None:
    keys = {**LEAN, "secure_aggregation": masks, "message_timeout_s": 120.0}
    parts = make_parts(configured(tmp_path / "planned", **keys))
    ports = iter(free_ports(4))
    addresses = [(f"tcp://127.0.0.1:{next(ports)}",) for _ in parts]
    with agents(tmp_path / "agents", parts, addresses=addresses, settings=PERMISSIVE) as made:
        train_with(made, configured(tmp_path / "deployed", **keys))
    train(tmp_path / "inline", **keys)
    assert model_bytes(tmp_path / "deployed") == model_bytes(tmp_path / "inline")
