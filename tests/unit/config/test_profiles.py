"""Which keys of a profile follow from a graph."""

from __future__ import annotations

from dataclasses import replace

import pytest

from retexo_fl.config import Scalar, make_config
from retexo_fl.config.profiles import (
    FITTED,
    PROFILES,
    SETTLED,
    GraphFacts,
    default_profile,
    fitted_values,
    leaving,
    profile_values,
)
from retexo_fl.run_log.profile import ChosenProfile

#: Like PubMed: rows of 50 entries, few neighbours, many train nodes.
USUAL = GraphFacts(
    nodes=20_000,
    edges=45_000,
    train_nodes=4_000,
    features=500,
    classes=3,
    entries=1_000_000,
    is_binary=False,
)
SUMS: dict[str, Scalar] = {"basis-rows": "sums"}
CHOOSE: dict[str, Scalar] = {"basis-rows": "choose"}
FEW: dict[str, Scalar] = {
    **SUMS,
    "basis-blocks": 3,
    "weight-decay": 0.05,
    "patience": 4,
    "update-bits": 4,
}


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        (USUAL, {}),
        # From thirty neighbours on, whatever the features are.
        (replace(USUAL, edges=300_000), CHOOSE),
        # All of the space is the same, whatever it is made of.
        (replace(USUAL, edges=300_000, features=25), CHOOSE),
        (replace(USUAL, edges=300_000, features=24), SUMS),
        (replace(USUAL, edges=299_999), {}),
        (replace(USUAL, edges=300_000, entries=10_000_000), CHOOSE),
        # Dense rows: 32 blocks, or all of the space.
        (replace(USUAL, entries=5_000_000), {"basis-blocks": 32}),
        (replace(USUAL, entries=5_000_000, classes=16), {**SUMS, "basis-blocks": 32}),
        (replace(USUAL, entries=5_000_000, classes=499), {**SUMS, "basis-blocks": 2}),
        (replace(USUAL, entries=4_999_999), {}),
        # Few train nodes for so many features.
        (replace(USUAL, train_nodes=249), FEW),
        (replace(USUAL, train_nodes=250), {}),
        (replace(USUAL, train_nodes=249, edges=100_000), {}),
        (replace(USUAL, train_nodes=999, features=9_000), FEW),
        (replace(USUAL, train_nodes=1_000, features=9_000), {}),
        # Rows of at most three times the bytes of 24 coordinates: five an entry, or one.
        (replace(USUAL, entries=288_000), CHOOSE),
        (replace(USUAL, entries=288_001), {}),
        (replace(USUAL, entries=1_440_000, is_binary=True), CHOOSE),
        (replace(USUAL, entries=1_440_001, is_binary=True), {}),
    ],
)
def test_lean_fits_a_graph(facts: GraphFacts, expected: dict[str, Scalar]) -> None:
    assert fitted_values("lean", facts, takes_sums=True, is_linear=True) == expected
    # A deployment's server may tell it to clients.
    assert expected.keys() <= SETTLED
    assert make_config({**PROFILES["lean"], **expected})


def test_a_model_without_sums_gets_no_basis_of_them() -> None:
    for facts in (replace(USUAL, edges=300_000), replace(USUAL, train_nodes=9)):
        assert fitted_values("lean", facts, takes_sums=False, is_linear=False) == {}
    whole = replace(USUAL, entries=5_000_000, classes=16)
    assert fitted_values("lean", whole, takes_sums=False, is_linear=False) == {
        **{"basis": "none", "optimizer": "adam", "dropout": 0.3, "rounds": 100, "patience": 20}
    }


def test_rows_two_edges_away_are_for_few_train_nodes_of_types() -> None:
    def fitted(nodes: int) -> object:
        facts = replace(USUAL, train_nodes=nodes)
        return fitted_values("lean", facts, takes_sums=False, is_linear=False, is_typed=True)

    assert fitted(249) == {"basis-rows": "far"}
    assert fitted(250) == {}


def test_few_coordinates_are_for_layers_that_are_linear_in_their_sums() -> None:
    few = replace(USUAL, train_nodes=9)
    assert fitted_values("lean", few, takes_sums=True, is_linear=True) == FEW
    assert fitted_values("lean", few, takes_sums=True, is_linear=False) == {}
    cheap = replace(USUAL, entries=10, train_nodes=9_000)
    assert fitted_values("lean", cheap, takes_sums=True, is_linear=True) == CHOOSE
    assert fitted_values("lean", cheap, takes_sums=True, is_linear=False) == {}


def test_end_to_end_training_is_held_back_where_there_is_little_to_learn_from() -> None:
    def fitted(facts: GraphFacts, *, linear: bool = False) -> object:
        return fitted_values("end-to-end", facts, takes_sums=linear, is_linear=linear)

    few = replace(USUAL, train_nodes=9, edges=3 * USUAL.nodes, entries=USUAL.nodes)
    held = {"dropout": 0.8, "weight-decay": 0.02}
    assert fitted(few) == fitted(few, linear=True) == held
    dense = replace(few, entries=USUAL.nodes * USUAL.features)
    for other in (dense, replace(few, train_nodes=5_000), replace(few, edges=5 * USUAL.nodes)):
        assert fitted(other) == {}


@pytest.mark.parametrize(
    ("algorithm", "named"),
    [("lazy", "retexo"), ("standard", "end-to-end"), ("central", "end-to-end")],
)
def test_a_run_that_leaves_the_default_has_its_algorithms_profile(
    algorithm: str, named: str
) -> None:
    assert default_profile({"algorithm": algorithm, "optimizer": "adam"}) == named
    assert default_profile({"algorithm": "lazy"}) == "lean"
    assert default_profile({"algorithm": "nothing"}) == "retexo"


def test_lean_has_other_keys_for_some_kinds_of_training() -> None:
    several: dict[str, Scalar] = {"local-steps": 5}
    lean = profile_values("lean", several)
    assert lean == {**PROFILES["lean"], "optimizer": "adam"}
    assert make_config({**lean, **several})
    assert profile_values("lean", {"local-steps": 1}) == PROFILES["lean"]
    assert profile_values("retexo", several) == PROFILES["retexo"]
    gin: dict[str, Scalar] = {**several, "model": "gin"}
    assert profile_values("lean", gin) == {**lean, "weight-bits": 32}
    for model in ("rel-sage", "rel-gcn", "rel-gat"):
        typed = profile_values("lean", {"model": model})
        assert typed == {**PROFILES["lean"], "weight-decay": 0.01}
    # What was chosen is the kind's own, or is not.
    assert leaving({**several, "optimizer": "adam"}) == ()
    assert leaving({**several, "optimizer": "lbfgs"}) == ("optimizer",)
    assert leaving({"optimizer": "adam"}) == ("optimizer",)
    assert leaving({"model": "rel-sage", "weight-decay": 0.01}) == ()


def test_more_layers_are_trained_leanly_of_layers_that_were_measured() -> None:
    assert leaving({"layers": 4}) == leaving({"model": "sage", "layers": 4}) == ("layers",)
    assert leaving({"layers": 3}) == leaving({"model": "gcn", "layers": 3}) == ()
    for model in ("gin", "gat"):
        assert leaving({"model": model, "layers": 3}) == ("layers",)
        assert leaving({"model": model, "layers": 2}) == ()
    assert leaving({"model": "gcn", "layers": 4}) == ()
    assert leaving({"model": "gcn", "layers": 4, "optimizer": "sgd"}) == ("optimizer",)
    assert leaving({"model": "gcn", "layers": 5}) == ("layers",)


def test_any_loss_of_classes_is_trained_leanly() -> None:
    for loss in ("cross-entropy", "focal:2", "my_loss:hinge"):
        assert leaving({"loss": loss, "class-weights": "balanced"}) == ()
    assert leaving({"task": "regression", "loss": "my_loss:huber"}) == ("task",)


def test_a_line_says_which_keys_a_kind_has() -> None:
    def sentence(**chosen: Scalar) -> str:
        keys = {key.replace("_", "-"): value for key, value in chosen.items()}
        return ChosenProfile.by("lean", (), keys).sentence

    assert sentence(local_steps=5) == (
        "profile lean, by default, with optimizer adam for local-steps 5"
    )
    assert sentence(local_steps=5, optimizer="adam") == "profile lean, by default"


def test_what_is_fitted_is_a_profile() -> None:
    assert PROFILES.keys() >= FITTED
