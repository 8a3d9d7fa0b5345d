"""Keys as editors, type checkers and ``help`` know them."""

from __future__ import annotations

import inspect
import pydoc
import re
from pathlib import Path

import jedi
import pytest
from mypy import api as mypy

import retexo_fl
from retexo_fl.config import default_values, field_of, key_infos, make_config, panels
from retexo_fl.config.profiles import PROFILES
from retexo_fl.config.synonyms import SYNONYMS
from retexo_fl.errors import ConfigurationError
from tests.support.cli import CommandLine
from tests.support.options import PAGE, PATH, page, written

#: That a function takes by a parameter of its own, or not at all.
OWN = {"partitions", "resume", "out"}
CALLS = ("run", "plan", "sweep", "partition")


def test_typed_keys_are_those_of_the_configuration() -> None:
    assert PATH.read_text(encoding="utf-8") == written(), "run: python -m tests.support.options"


def test_the_page_of_options_is_that_of_the_configuration() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text == page(), "run: python -m tests.support.options"
    of_keys, _, of_profiles = text.partition("\n## Profiles\n")
    rows = [line for line in of_keys.splitlines() if line.startswith("| `")]
    named = [row.split("`")[1] for row in rows]
    assert named == [key for keys in panels().values() for key in keys] == [*key_infos()]
    assert all(len(re.split(r"(?<!\\)\|", row)) == 5 for row in rows)
    (hidden,) = [row for row in rows if row.startswith("| `hidden` | ")]
    assert hidden.endswith(" | **`64`**; 1 to 65536 |")
    (drop,) = [row for row in rows if row.startswith("| `self-loops` | ")]
    assert drop.endswith(" | **`refuse`**, `drop` |")
    assert all(f" `{name}` |" in of_profiles for name in PROFILES)
    # Every table has its heading: none of one group runs on into the next.
    assert text.count("| option | meaning | values |") == len(
        re.findall(r"\n\n\| option \| m", text)
    )
    for key, value in PROFILES["lean"].items():
        (row,) = [line for line in of_profiles.splitlines() if line.startswith(f"| `{key}` |")]
        assert f" `{str(value).lower() if isinstance(value, bool) else value}` |" in row


# The first one has Jedi read all that is imported, five seconds; what it reads is compared above.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("call", "is_live"), [(call, at % 2 == 1) for at, call in enumerate(CALLS)], ids=str
)
def test_jedi_completes_every_key(call: str, is_live: bool) -> None:
    text = f"import retexo_fl\nretexo_fl.{call}("
    asked = jedi.Interpreter(text, [{"retexo_fl": retexo_fl}]) if is_live else jedi.Script(text)
    (signature,) = asked.get_signatures()
    names = {parameter.name for parameter in signature.params}
    assert names >= {field_of(key) for key in key_infos() if key not in OWN}
    asked = (
        jedi.Interpreter(f"{text}weight_d", [{"retexo_fl": retexo_fl}])
        if is_live
        else (jedi.Script(f"{text}weight_d"))
    )
    assert [found.name for found in asked.complete()] == ["weight_decay="]


@pytest.mark.slow
def test_mypy_checks_keys_and_their_values(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(
        "import torch\n"
        "import retexo_fl\n"
        "retexo_fl.run(hidden=8, model='pyg:GATv2Conv', update_bits=8, fanouts=[5, 3], out='o')\n"
        "retexo_fl.sweep(out='o', hidden=[8, 16], update_bits=[8, 32], seed=range(3))\n"
        "retexo_fl.run(loss=torch.nn.functional.l1_loss, data_dir=None)\n"
        "retexo_fl.run(hidden='wide')\n"
        "retexo_fl.run(update_bits=7)\n"
        "retexo_fl.plan(algorithm='lazier')\n"
        "retexo_fl.run(hiden=8)\n"
        "retexo_fl.partition(out='o', clients='two')\n"
        "retexo_fl.sweep(out='o', optimizer=['adam', 'adamm'])\n"
    )
    told, _, code = mypy.run(
        ["--no-error-summary", "--no-incremental", "--follow-imports=silent", str(tmp_path)]
    )
    assert code == 1
    lines = [line.split(": error: ") for line in told.splitlines() if ": error: " in line]
    assert [int(place.rpartition(":")[2]) for place, _ in lines] == [6, 7, 8, 9, 10, 11], told
    for (_, sentence), named in zip(
        lines,
        ("hidden", "update_bits", "algorithm", "hiden", "clients", "List item 1"),
        strict=True,
    ):
        assert named in sentence


@pytest.mark.parametrize("call", CALLS)
def test_help_shows_keys_by_group_with_defaults(call: str) -> None:
    function = getattr(retexo_fl, call)
    text = pydoc.plain(pydoc.render_doc(function))
    for heading, keys in panels().items():
        shown = [key for key in keys if key not in OWN]
        places = [text.index(f" {field_of(key)} = {default_values()[key]!r}\n") for key in shown]
        assert places == sorted(places)
        assert not places or text.index(f"{heading}:\n") < places[0]
    defaults = inspect.signature(function).parameters
    assert defaults["hidden"].default == 64


@pytest.mark.parametrize(
    ("name", "key"),
    [
        *(("epochs", "rounds"), ("lr", "learning-rate"), ("hidden_channels", "hidden")),
        *(("num_clients", "clients"), ("num_layers", "layers"), ("wd", "weight-decay")),
        *(("batch_size", "batch-nodes"), ("num_rounds", "rounds"), ("device", "devices")),
        *(("local_epochs", "local-steps"), ("random_state", "seed"), ("hiden", "hidden")),
        *(("epoch", "rounds"), ("learning_rates", "learning-rate"), ("num_neighbor", "fanouts")),
    ],
)
def test_what_others_call_a_key_is_named(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, name: str, key: str
) -> None:
    told = f"did you mean '{key}'?"
    for call in CALLS:
        given = {"out": tmp_path / "o", name: 3} if call in {"sweep", "partition"} else {name: 3}
        with pytest.raises(ConfigurationError, match=told.replace("?", r"\?")):
            getattr(retexo_fl, call)(**given)
    retexo, kebab = CommandLine(capfd), name.replace("_", "-")
    for option in {f"--{name}", f"--{kebab}"}:
        told_there = retexo.refused("run", option, "3")
        assert told_there == f"{option}: unknown option; did you mean '--{key}'?"
    (tmp_path / "run.toml").write_text(f"{kebab} = 3\n")
    assert told in retexo.refused("run", "--config", tmp_path / "run.toml")
    with pytest.raises(ConfigurationError, match=key):
        make_config({name: 3})


def test_other_names_are_none_of_the_keys_and_lead_to_keys() -> None:
    assert set(SYNONYMS.values()) <= key_infos().keys()
    assert not {name.replace("_", "-") for name in SYNONYMS} & key_infos().keys()
