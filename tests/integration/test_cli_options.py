"""Bad options and configuration files: one line, exit code 2, nothing written."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import tomli_w

from retexo_fl.config import PLACE_KEYS, default_values, key_infos, panels
from tests.integration import test_local_steps as local_steps
from tests.support.cli import TINY, CommandLine, path_graph, write_graph

KEYS = tuple(key_infos())
WHOLE = tuple(key for key, value in default_values().items() if type(value) is int)
SWITCHES = tuple(key for key, value in default_values().items() if isinstance(value, bool))
NUMBERS = tuple(key for key, value in default_values().items() if isinstance(value, float))
OTHERS = tuple(key for key in KEYS if key not in WHOLE + NUMBERS + SWITCHES)
CHOSEN = tuple(key for key in OTHERS if key_infos()[key].brief)
TEXTS = tuple(key for key in OTHERS if key not in CHOSEN)


def test_keys_are_of_all_kinds() -> None:
    assert min(map(len, (WHOLE, NUMBERS, CHOSEN, TEXTS))) >= 4


def test_panels_have_headings_of_their_own() -> None:
    headings = [info.panel for info in key_infos().values() if info.panel]
    assert list(panels()) == headings
    assert [key for keys in panels().values() for key in keys] == list(KEYS)


@pytest.mark.parametrize("key", WHOLE)
def test_run_refuses_what_is_no_whole_number_in_range(
    retexo: CommandLine, tmp_path: Path, key: str
) -> None:
    for text in ("x", "", "1.5", "-1", "2147483648", "9" * 5000):
        told = retexo.refused("run", f"--{key}", text, "--out", "new")
        assert told.startswith(f"{key}: got ")
        assert f"expected {key_infos()[key].expected}" in told
        assert len(told) < 200
        assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("key", SWITCHES)
def test_run_refuses_what_is_neither_true_nor_false(
    retexo: CommandLine, tmp_path: Path, key: str
) -> None:
    for text in ("x", "", "1", "True", "yes"):
        told = retexo.refused("run", f"--{key}", text, "--out", "new")
        assert told == f"{key}: got {text!r}; expected true or false"
        assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("key", ["introductions", "relay"])
def test_peering_is_for_deployments(retexo: CommandLine, tmp_path: Path, key: str) -> None:
    told = retexo.refused("run", f"--{key}", "true", "--out", "new")
    assert re.match(f"{key}: .*; expected engine deployment$", told)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("key", NUMBERS)
def test_run_refuses_what_is_no_number_in_range(
    retexo: CommandLine, tmp_path: Path, key: str
) -> None:
    for text in ("x", "", "-0.5", "nan", "inf", "1e999"):
        told = retexo.refused("run", f"--{key}", text, "--out", "new")
        assert told.startswith(f"{key}: got ")
        assert "expected a " in told
        assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("key", CHOSEN)
def test_run_refuses_unknown_choices(retexo: CommandLine, tmp_path: Path, key: str) -> None:
    for text in ("nonesuch", "", "Random", "a:b c"):
        # Nothing is a value of some keys.
        if text or default_values()[key] != "":
            told = retexo.refused("run", f"--{key}", text, "--out", "new")
            assert told == f"{key}: got {text!r}; expected {key_infos()[key].expected}"
            assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("key", TEXTS)
def test_run_refuses_text_that_cannot_be_shown(
    retexo: CommandLine, tmp_path: Path, key: str
) -> None:
    for text in ("a\0b", "a\nb", "\x1b[31m", "\udcff"):
        told = retexo.refused("run", f"--{key}", text)
        assert told == f"{key}: got {text!r}; expected printable text"
        assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("key", [key for key in KEYS if key != "resume"])
def test_config_file_refuses_values_of_another_type(
    retexo: CommandLine, tmp_path: Path, key: str
) -> None:
    wrong = 3 if isinstance(default_values()[key], str) else "text"
    # A number is a point in time, or names a column.
    wrong = True if key in {"edges-before", "label-column"} else wrong
    Path("keys.toml").write_text(tomli_w.dumps({key: wrong}))
    told = retexo.refused("run", "--config", "keys.toml")
    kind = type(wrong).__name__
    assert re.match(rf"keys\.toml: {key}: got {wrong!r} .*{kind}; expected", told)
    assert [path.name for path in tmp_path.iterdir()] == ["keys.toml"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("rounds = ", r"keys\.toml: .*TOML file .*end of document"),
        ("\x00", r"keys\.toml: .*TOML file "),
        ("hiden = 3", r"keys\.toml: hiden: unknown .*'hidden'\?"),
        ("[model]\nhidden = 3", r"keys\.toml: model: got {'hidden': 3} .*dict; expected str"),
        ("dropout = nan", r"keys\.toml: dropout: got nan; expected a finite"),
        ("rounds = 0", r"keys\.toml: rounds: got 0; expected .*from 1 to"),
        ("rounds = true", r"keys\.toml: rounds: got True .*bool; expected int"),
        ("weight-decay = 1" + "0" * 400, r"keys\.toml: weight-decay: got inf; expected a finite"),
        ("resume = 'run'", r"keys\.toml: resume: expected .*command line"),
    ],
)
def test_config_file_names_place_and_key(retexo: CommandLine, text: str, expected: str) -> None:
    Path("keys.toml").write_text(text)
    assert re.match(expected, retexo.refused("run", "--config", "keys.toml"))


def test_config_file_that_cannot_be_read(retexo: CommandLine) -> None:
    told = retexo.refused("run", "--config", "no.toml")
    assert re.match(r"no\.toml: .*\(No such file or directory\)", told)
    told = retexo.refused("run", "--config", ".")
    assert re.match(r"\.: .*\(Is a directory\)", told)


def test_options_win_over_the_config_file(retexo: CommandLine) -> None:
    Path("keys.toml").write_text("rounds = 500\nhidden = 8\nclients = 3\nout = 'elsewhere'\n")
    retexo.done("run", "--config", "keys.toml", "--rounds", "1", "--out", "here", "--quiet")
    written = Path("here/config.toml").read_text()
    assert "rounds = 1\n" in written
    assert "hidden = 8\n" in written
    assert "clients = 3\n" in written
    assert not Path("elsewhere").exists()


def test_heads_must_share_the_hidden_width(retexo: CommandLine) -> None:
    told = retexo.refused("run", "--model", "gat", "--hidden", "60")
    assert re.match("hidden: .*60.* 8 heads; expected a multiple", told)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("run", "--rouns", "3"), r"--rouns: unknown option; .*'--rounds'\?"),
        (("run", "--zzz"), "--zzz: unknown option; see --help"),
        (("run", "--rounds"), "--rounds: .*no value; expected"),
        (("runn",), r"runn: unknown command; .*'run'\?"),
        (("zzz",), "zzz: unknown command; see --help"),
        (("partition", "mak"), r"mak: unknown command; .*'make'\?"),
        (("partition", "make"), "--out: missing; expected DIR"),
        (("report",), "argument: missing; expected RUN"),
        (("partition", "check"), r"argument: missing; expected DIR\.\.\."),
        (("run", "extra"), r".*unexpected.*\(extra\)"),
        (("plan", "--engine", "flower"), "--engine: unknown option; "),
        (("--versio",), r"--versio: unknown option; .*'--version'\?"),
    ],
)
def test_unknown_and_missing_words_are_named(
    retexo: CommandLine, arguments: tuple[str, ...], expected: str
) -> None:
    assert re.match(expected, retexo.refused(*arguments))


@pytest.mark.parametrize("key", ["dataset", "data-dir", "partitioner", "split"])
def test_partitions_exclude_what_parts_were_cut_with(retexo: CommandLine, key: str) -> None:
    value = "published" if key == "split" else "metis"
    told = retexo.refused("run", "--partitions", "parts", f"--{key}", value)
    assert re.match(f"{key}: .*partitions.*; expected", told)


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("model", "no_such_module:Layer", "cannot import 'no_such_module'"),
        ("model", "math:nothing", "'math' has no 'nothing'"),
        ("model", "math:pi", "'math:pi'"),
        ("aggregator", "no_such_module:Mean", "cannot import 'no_such_module'"),
        ("aggregator", "math:pi", "'math:pi'"),
        ("partitioner", "no_such_module:cut", "cannot import 'no_such_module'"),
        ("aggregator", "math:sqrt", r"expected .*callable \(\) .*missing a required"),
        ("aggregator", "argparse:Namespace", "Namespace .*start, add, finish"),
        ("aggregator", "flwr.serverapp.strategy:Strategy", "got an abstract class"),
        ("partitioner", "math:pi", r"float; expected .*\(graph, clients, seed\)"),
        ("partitioner", "math:sqrt", r"expected .*\(graph, clients, seed\) .*too many"),
        ("partitioner", "builtins:slice", "slice; expected .*integers of shape"),
        ("split", "no_such_module:cut", "cannot import 'no_such_module'"),
        ("split", "math:pi", r"float; expected .*\(graph, assignment, seed\)"),
        ("split", "builtins:slice", "slice; expected a Split"),
    ],
)
def test_plugins_are_found_before_anything_is_written(
    retexo: CommandLine, tmp_path: Path, key: str, value: str, expected: str
) -> None:
    told = retexo.refused("run", f"--{key}", value, "--out", "new", *TINY)
    assert told.startswith(key)
    assert re.search(expected, told)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "split",
    [
        *("random:", "random:0.2", "random:0.2/0.1", "random:0.2/0.1/0.7/0", "random:a/b/c"),
        *("random:-0.1/0.5/0.5", "random:nan/0.1/0.1", "random:1e999999999/0.1/0.1"),
        *("per-client-class:", "random:1/0//2", "random:./1/1", "randm:0.1/0.1/0.1", "Published"),
        *("random:shares", "published:split"),
    ],
)
def test_malformed_splits_are_refused(retexo: CommandLine, tmp_path: Path, split: str) -> None:
    told = retexo.refused("run", "--split", split, "--out", "new", *TINY)
    assert told.startswith(f"split: got {split!r}; expected one of auto, published, publ")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("shares", ["0.5/0.4/0.2", "0/0.5/0.5", "1/0/0", "2/.1/.1"])
def test_impossible_shares_are_refused(retexo: CommandLine, tmp_path: Path, shares: str) -> None:
    told = retexo.refused("run", "--split", f"random:{shares}", "--out", "new", *TINY)
    assert re.match(f"split: got 'random:{shares}'; expected .*shares above 0", told)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.devices
def test_run_configuration_keys_are_options_of_the_same_name(retexo: CommandLine) -> None:
    # What each key does to a run is stored there; a key that an option lost would keep its default.
    edges = path_graph()["edge_index"].shape[1]
    data = write_graph(Path("data"), edge_time=np.arange(edges))
    other = {
        **{"dataset": "small", "data-dir": str(data), "clients": "2"},
        **{"edges-are": "directed", "merge-edges": "sum", "self-loops": "drop"},
        **{"unknown-nodes": "drop"},
        **{"edges-before": str(edges)},
        **{"partitioner": "louvain", "split": "random:0.4/0.3/0.3", "feature-normalisation": "l2"},
        **{"model": "dir-gat", "layers": "1", "hidden": "6", "heads": "3", "rounds": "1"},
        **{"last-rounds": "2"},
        **{"patience": "4", "learning-rate": "0.5", "dropout": "0.25", "weight-decay": "0.125"},
        **{"seed": "7", "dtype": "float64", "threads": "2", "missing-peers": "drop"},
        **{"exchange-deadline-s": "5", "message-timeout-s": "6", "checkpoint-every": "3"},
        **{"local-steps": "2", "local-optimizer": "sgd", "local-learning-rate": "0.75"},
        **{"proximal-mu": "0.5", "server-optimizer": "yogi"},
        **{"link-head": "mlp", "negatives": "3"},
        **{"loss": f"{local_steps.__name__}:smoothed", "metric": local_steps.METRIC},
        **{"links": "delay:5ms", "memory-budget": "9GB"},
        **{"boundary-plan": "cover", "class-weights": "1,2"},
        **{"boundary-rate": "0.25", "boundary-scaling": "none", "activations": "recompute"},
        **{"codec": "dense", "min-clients": "2", "round-deadline-s": "7"},
        **{
            "exchange-poll-s": "4",
            "basis": "supervised",
            "basis-blocks": "2",
            "basis-bits": "8",
            "update-bits": "8",
        },
        **{"weight-bits": "4", "candidates": "own-row", "unlabelled-types": "trained"},
        **{"fanouts": "4/3", "batch-nodes": "9", "cache-share": "0.5", "cache-epochs": "2"},
        **{"gpu-cache": "lru", "cohort-size": "4"},
        **{"update-dp-delta": "1e-06", "update-dp-clip": "0.5"},
        **{"structure": "degrees", "structure-columns": "9"},
        **{"structure-steps": "5", "structure-bits": "8"},
        # Where there is no such GPU, the client computes by itself.
        **{"devices": "cuda:200,cpu", "balance": "static"},
    }
    only_default = {"algorithm", "task", "aggregator", "engine", "partitions", "nodes", "edges"}
    only_default |= {"features", "key-column", "label-column", "secure-aggregation", "num-bases"}
    only_default |= {
        "unlabelled-values",
        "repeated-nodes",
        "drop-columns",
        "delimiter",
        "decimal",
        "encoding",
    }
    columns = ("source", "target", "weight", "time", "node-time", "type")
    only_default |= {f"{name}-column" for name in columns}
    only_default |= {
        "sampler",
        "optimizer",
        "solver",
        "second-rows",
        "row-dp",
        "row-bits",
        "basis-rows",
        "local-correction",
    }
    only_default |= {"update-dp", "ridge-penalty", "floor", "predicates", "relation", "label-types"}
    assert set(other) == {*KEYS} - only_default - PLACE_KEYS - {*SWITCHES}
    retexo.done("run", "--out", "run", *(word for k, v in other.items() for word in (f"--{k}", v)))
    written = Path("run/config.toml").read_text().replace('"', "")
    assert {
        line.split(" = ")[0]: line.split(" = ")[1].removesuffix(".0")
        for line in written.splitlines()
        if line.split(" = ")[0] in other
    } == other
