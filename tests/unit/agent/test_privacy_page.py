"""What `docs/privacy.md` has owners copy: files that say what it says, for the runs beside them."""

from __future__ import annotations

import re
import shlex
import tomllib
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from retexo_fl.agent.admission import admit
from retexo_fl.agent.settings import AgentSettings, settings_of
from retexo_fl.api.plan_exchanges import PlannedParts
from retexo_fl.api.settling import Asked, fitted, settled
from retexo_fl.client.preparation import make_parts
from retexo_fl.config import config_values, default_values
from retexo_fl.errors import ConfigurationError
from tests.support.commands import ROOT

PAGE = (ROOT / "docs/privacy.md").read_text(encoding="utf-8")
FILE = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)[0]
COMMANDS = re.findall(r"^# ([ABC]): .*\nretexo run (.*)$", PAGE, re.MULTILINE)
#: What the page has owners change of the file.
CHANGES: dict[str, dict[str, Any]] = {
    "A": {},
    "B": {"max-row-epsilon": 0.0, "max-epsilon": 8.0},
    "C": {"allow-algorithms": ["drop"]},
}


def settings(**changes: Any) -> AgentSettings:
    return settings_of({**tomllib.loads(FILE), **changes}, Path("/etc/retexo"))


def ask(options: str, limits: AgentSettings) -> None:
    """Ask the agent of the first of a run's parts for the run."""
    words = iter(shlex.split(options))
    defaults = default_values()
    values = {name.removeprefix("--"): next(words) for name in words}
    asked = Asked(
        values={key: type(defaults[key])(value) for key, value in values.items()}
    ).of_run()
    config = settled(asked)
    parts = make_parts(config)
    config, _ = fitted(config, PlannedParts(parts), asked)
    admit(config_values(config), parts[0], limits)


def test_comments_of_the_file_are_the_defaults() -> None:
    said = re.findall(r"^([a-z-]+) = .*# default (.*?): ", FILE, re.MULTILINE)
    assert len(said) == 15
    defaults = {one.name.replace("_", "-"): one.default for one in fields(AgentSettings)}
    for key, text in said:
        (value,) = tomllib.loads(f"value = {text}").values()
        assert (tuple(value) if isinstance(value, list) else value) == defaults[key], key


def test_changes_are_what_the_page_names() -> None:
    assert "**For B** set `max-row-epsilon = 0.0` and `max-epsilon = 8.0`." in PAGE
    assert '**For C** set `allow-algorithms = ["drop"]`.' in PAGE


@pytest.mark.parametrize(("name", "options"), COMMANDS)
def test_each_file_admits_its_run_and_no_run_by_default(name: str, options: str) -> None:
    limits = settings(**CHANGES[name])
    ask(options, limits)
    with pytest.raises(ConfigurationError, match="client 0: "):
        ask("--clients 5", limits)


def test_files_refuse_each_others_runs() -> None:
    assert [name for name, _ in COMMANDS] == ["A", "B", "C"]
    for name, options in COMMANDS:
        for other in {"A", "B", "C"} - {name}:
            with pytest.raises(ConfigurationError):
                ask(options, settings(**CHANGES[other]))


def test_both_epsilons_refuse_every_run() -> None:
    both = replace(settings(), max_epsilon=8.0, allow_algorithms=("lazy", "drop"))
    for _, options in COMMANDS:
        with pytest.raises(ConfigurationError, match=r"max-epsilon|max-row-epsilon"):
            ask(options, both)
