from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from retexo_fl.errors import ConfigurationError
from retexo_fl.simulation.prediction_set import (
    Workshop,
    clear_workshops,
    finished_summary,
    owned_folder,
    workshop,
)

IDENTITY = {"model_digest": "m", "parts_digest": "p", "format": "csv"}


def fill(place: Workshop, clients: int = 2, form: str = "csv", text: str = "x") -> None:
    for client in range(clients):
        (place.clients / f"predictions-{client}.{form}").write_text(f"{text}{client}")


def make(out: Path, clients: int = 2, form: str = "csv", text: str = "x") -> None:
    with workshop(out) as place:
        fill(place, clients, form, text)
        place.settle({**IDENTITY, "format": form}, dict.fromkeys(range(clients), 1), form)


def names(out: Path) -> list[str]:
    return sorted(path.name for path in out.iterdir())


def test_settle_puts_files_and_a_summary_that_names_them(tmp_path: Path) -> None:
    make(tmp_path)
    assert names(tmp_path) == ["predictions-0.csv", "predictions-1.csv", "predictions.json"]
    summary = finished_summary(tmp_path, IDENTITY)
    assert summary is not None
    assert summary.items() <= json.loads((tmp_path / "predictions.json").read_text()).items()
    assert [(entry["client"], entry["bytes"]) for entry in summary["files"]] == [(0, 2), (1, 2)]


def test_settle_removes_the_set_before(tmp_path: Path) -> None:
    (tmp_path / "predictions-of-mine.csv").write_text("mine")
    make(tmp_path, clients=4)
    make(tmp_path, clients=1, form="npz")
    assert names(tmp_path) == ["predictions-0.npz", "predictions-of-mine.csv", "predictions.json"]


def test_what_fails_before_settling_leaves_nothing(tmp_path: Path) -> None:
    out = tmp_path / "new" / "deep"

    def failing() -> None:
        with owned_folder(out), workshop(out) as place:
            fill(place)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        failing()
    assert not out.exists()


@pytest.mark.parametrize("renames", [0, 1, 2, 3])
def test_settling_that_is_cut_off_is_known_for_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, renames: int
) -> None:
    make(tmp_path, text="old")
    replace, left = Path.replace, renames + 1  # the first one is the summary's, aside

    def counted(path: Path, target: Any) -> Path:
        nonlocal left
        if left == 0:
            raise KeyboardInterrupt
        left -= 1
        return replace(path, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", counted)
        if renames < 3:
            with pytest.raises(KeyboardInterrupt):
                make(tmp_path, text="new")
        else:
            make(tmp_path, text="new")
    # Old and new files may stand together now, but no summary says that they belong together.
    found = finished_summary(tmp_path, IDENTITY)
    assert (found is None) == (renames < 3)
    make(tmp_path, text="new")
    assert names(tmp_path) == ["predictions-0.csv", "predictions-1.csv", "predictions.json"]
    assert (tmp_path / "predictions-0.csv").read_text() == "new0"


@pytest.mark.parametrize("text", ["{", "[]", "{}", "3", '"text"', json.dumps(IDENTITY)])
def test_damaged_summaries_are_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "predictions.json").write_text(text)
    with pytest.raises(
        ConfigurationError, match=r"^out: .*predictions\.json cannot be read.*--overwrite$"
    ):
        finished_summary(tmp_path, IDENTITY)


def test_altered_summaries_and_those_of_others_are_refused(tmp_path: Path) -> None:
    make(tmp_path)
    for other in ({**IDENTITY, "format": "npz"}, {**IDENTITY, "more": 1}):
        with pytest.raises(ConfigurationError, match=r"holds other predictions; .*--overwrite$"):
            finished_summary(tmp_path, other)
    path = tmp_path / "predictions.json"
    path.write_text(path.read_text().replace('"rows": 1', '"rows": 2', 1))
    with pytest.raises(ConfigurationError, match=r"predictions\.json was altered; "):
        finished_summary(tmp_path, IDENTITY)


def test_altered_and_foreign_files_are_refused(tmp_path: Path) -> None:
    make(tmp_path)
    (tmp_path / "predictions-1.csv").unlink()
    with pytest.raises(ConfigurationError, match=r"predictions-1\.csv is missing or was altered"):
        finished_summary(tmp_path, IDENTITY)
    (tmp_path / "predictions.json").unlink()
    with pytest.raises(
        ConfigurationError, match=r"predictions-0\.csv .*without a predictions\.json"
    ):
        finished_summary(tmp_path, IDENTITY)
    # What a killed process left beside them says that they are ours.
    (tmp_path / ".predictions-abc.part").mkdir()
    assert finished_summary(tmp_path, IDENTITY) is None
    clear_workshops(tmp_path)
    assert names(tmp_path) == ["predictions-0.csv"]


def test_folder_is_held_against_other_processes(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path\n"
        "from retexo_fl.errors import ConfigurationError\n"
        "from retexo_fl.simulation.prediction_set import owned_folder\n"
        "try:\n"
        "    with owned_folder(Path(sys.argv[1])):\n"
        "        print('free')\n"
        "except ConfigurationError as error:\n"
        "    print(error)\n"
    )

    def told() -> str:
        command = [sys.executable, "-c", script, str(tmp_path)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=True)
        return done.stdout.strip()

    with owned_folder(tmp_path):
        assert re.fullmatch(rf"out: another process .*{re.escape(str(tmp_path))}; .*", told())
    assert told() == "free"
    assert tmp_path.is_dir()


def test_places_that_are_none_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for name, out in (("manifest.json", "a part"), ("config.toml", "a run")):
        folder = tmp_path / name.replace(".", "-")
        folder.mkdir()
        (folder / name).write_text("")
        with (
            pytest.raises(ConfigurationError, match=f"is {out}; expected another folder"),
            owned_folder(folder),
        ):
            pass
    for out_path in (tmp_path / "file", tmp_path / "file" / "below"):
        with (
            pytest.raises(ConfigurationError, match=r"^out: .*(cannot be written to|cannot be)"),
            owned_folder(out_path),
        ):
            pass
