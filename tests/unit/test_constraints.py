"""The pinned versions of CI: complete, of this project's own ranges, and from no named place."""

from __future__ import annotations

import importlib.metadata
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

_ROOT = Path(__file__).parents[2]
_FILE = _ROOT / ".ci" / "constraints.txt"


def _pins() -> dict[str, str]:
    lines = _FILE.read_text(encoding="ascii").splitlines()
    found = [Requirement(line) for line in lines if not line.startswith("#")]
    pins: dict[str, str] = {}
    for one in found:
        (version,) = one.specifier
        assert version.operator == "=="
        pins[canonicalize_name(one.name)] = version.version
    assert len(pins) == len(found)
    return pins


#: What PyTorch's build for CUDA needs; the pins are of the CPU build, and fit either.
_OF_CUDA = ("cuda", "nvidia", "triton")


def _asked() -> list[Requirement]:
    project = tomllib.loads((_ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    texts = [*project["dependencies"], *extras["dev"], *extras["docs"], *extras["sim"]]
    return [Requirement(text) for text in texts]


def test_everything_that_ci_installs_is_pinned_within_its_range() -> None:
    pins = _pins()
    for asked in _asked():
        if asked.name != "retexo-fl" and (asked.marker is None or asked.marker.evaluate()):
            assert asked.specifier.contains(pins[canonicalize_name(asked.name)]), asked


def test_what_they_need_themselves_is_pinned_too() -> None:
    pins = _pins()
    seen: set[str] = set()
    waiting = [asked for asked in _asked() if asked.name != "retexo-fl"]
    while waiting:
        asked = waiting.pop()
        if f"{asked.name}{asked.extras}" in seen or asked.name.startswith(_OF_CUDA):
            continue
        seen.add(f"{asked.name}{asked.extras}")
        try:
            needed = importlib.metadata.requires(asked.name) or ()
        except importlib.metadata.PackageNotFoundError:
            continue  # Of another platform.
        assert canonicalize_name(asked.name) in pins, asked
        for line in needed:
            one = Requirement(line)
            extras = [{"extra": extra} for extra in ("", *asked.extras)]
            if one.marker is None or any(one.marker.evaluate(extra) for extra in extras):
                waiting.append(one)


def test_what_decides_bits_and_formats_has_an_upper_bound() -> None:
    bounded = {
        asked.name
        for asked in _asked()
        if any(version.operator in ("<", "<=") for version in asked.specifier)
    }
    assert bounded >= {"torch", "flwr", "numpy", "scipy", "numba", "safetensors"}


def test_pins_name_no_place() -> None:
    text = _FILE.read_text(encoding="ascii")
    assert not any(mark in text for mark in ("://", "--", "@", "+"))


def test_ci_installs_by_the_pins() -> None:
    script = (_ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert script.index("export PIP_CONSTRAINT=") < script.index("pip install")
