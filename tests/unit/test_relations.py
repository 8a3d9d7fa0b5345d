from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from retexo_fl.relations import Channel, Relation, Relations, keys_of_type, relations_of

BANK = Relations(
    types=("customer", "device", "shop"),
    widths=(5, 3, 1),
    relations=(
        Relation(0, "owns", 1),
        Relation(0, "knows", 0, symmetric=True),
        Relation(1, "stands", 2),
    ),
    with_labels=(0,),
)


def test_a_channel_is_its_partner_from_the_other_end() -> None:
    assert BANK.num_channels == 6
    assert BANK.channels == (
        Channel(0, 0, 1),
        Channel(1, 0, 0),
        Channel(2, 1, 2),
        Channel(3, 2, 1),
        Channel(5, 1, 0),
    )
    assert [channel.column for channel in BANK.into(0)] == [1, 5]


def test_types_are_reached_from_those_with_a_loss() -> None:
    assert BANK.with_loss(None) == (0,)
    assert BANK.within((0,), 0) == (0,)
    assert BANK.within((0,), 1) == (0, 1)
    assert BANK.within((0,), 2) == BANK.within((0,), 9) == (0, 1, 2)
    assert [BANK.with_loss(place) for place in range(3)] == [(0, 1), (0,), (1, 2)]
    assert BANK.within((1, 2), 0) == (1, 2)
    assert BANK.within((1, 2), 1) == (1, 2, 0)
    assert replace(BANK, with_labels=()).with_loss(None) == ()
    assert [BANK.columns(kind) for kind in range(3)] == [slice(0, 5), slice(5, 8), slice(8, 9)]


def test_rows_of_types_that_nobody_reads_need_not_cross() -> None:
    # A device is read by customers, a shop by devices, a customer by both.
    assert BANK.read_within((0,), 0) == (0, 1)
    assert BANK.read_within((0,), 1) == (0, 1, 2)
    alone = replace(BANK, relations=(Relation(0, "owns", 1), Relation(1, "stands", 2)))
    assert alone.read_within((0,), 0) == (1,)


def test_keys_tell_types() -> None:
    keys = np.concatenate([keys_of_type(name, np.array([b"1", b"2"])) for name in BANK.types])
    assert BANK.kinds(keys).tolist() == [0, 0, 1, 1, 2, 2]
    assert BANK.kinds(np.array([b"customers/1", b"shop"])).tolist() == [-1, -1]


def test_text_is_read_as_it_was_written() -> None:
    assert relations_of(BANK.text) == BANK
    assert '"labelled":0' in BANK.text
    several = replace(BANK, with_labels=(0, 2))
    assert relations_of(several.text) == several
    none = replace(BANK, with_labels=())
    assert '"labelled":null' in none.text
    assert relations_of(none.text) == none
    assert relations_of("") is None


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"types": ["customer", "customer", "shop"]}, "of different names"),
        ({"types": ["customer", "de/vice", "shop"]}, "the name 'de/vice'"),
        ({"widths": [5, 3]}, "other widths"),
        ({"widths": [5, 3, 0]}, "other widths"),
        ({"relations": []}, "0 relations"),
        ({"relations": [[0, "owns", 3, False]]}, "'owns' is not between two"),
        ({"relations": [[0, "owns", 1, True]]}, "'owns' is symmetric"),
        ({"relations": [[0, "owns", 1, False], [0, "owns", 1, False]]}, "have one name"),
        ({"labelled": 3}, "got 3 as labelled type"),
        ({"labelled": 0.0}, "got 0.0 as labelled type"),
        ({"labelled": [1, 0]}, "got labelled types"),
        ({"labelled": [0, 0]}, "got labelled types"),
        ({"labelled": [0, "1"]}, "got '1' as labelled type"),
        ({"labelled": [0]}, "as it is written"),
        ({"more": 1}, "expected types, widths"),
    ],
)
def test_other_texts_are_refused(change: dict[str, Any], told: str) -> None:
    values = json.loads(BANK.text) | change
    with pytest.raises(ValueError, match=told):
        Relations.of_text(json.dumps(values, sort_keys=True, separators=(",", ":")))


def test_a_text_is_read_in_one_form_alone() -> None:
    assert replace(BANK).text == BANK.text
    with pytest.raises(ValueError, match="as it is written"):
        Relations.of_text(BANK.text.replace(",", ", "))
