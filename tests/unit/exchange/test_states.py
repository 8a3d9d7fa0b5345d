from __future__ import annotations

from pathlib import Path

import pytest

import retexo_fl.exchange
from retexo_fl.exchange.states import TRANSITIONS, State, expected_triggers, transition_table


def test_transition_table_is_the_one_in_the_readme() -> None:
    readme = Path(retexo_fl.exchange.__file__).with_name("README.md").read_text(encoding="utf-8")
    assert transition_table() in readme


@pytest.mark.parametrize("state", [State.ERROR, State.CLOSED])
def test_transitions_never_leave_the_last_states(state: State) -> None:
    assert not [start for start, _ in TRANSITIONS if start is state]
    assert expected_triggers(state) == "nothing more"


def test_expected_triggers_lists_what_may_happen() -> None:
    assert expected_triggers(State.HELLO) == "HELLO or ABORT"
    assert expected_triggers(State.DONE) == "CLOSE"
