from __future__ import annotations

import re

import pytest

from tests.support.commands import ROOT

GUIDE = ROOT / "docs" / "sampling.md"


def test_example_of_the_guide_adds_up_both_layers(capsys: pytest.CaptureFixture[str]) -> None:
    example = re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)[0]
    exec(compile(example, str(GUIDE), "exec"), {})  # noqa: S102 - our own guide
    # Rows of (A + 1)^2, as no fanout is below a degree.
    assert capsys.readouterr().out == "[[2. 3. 2. 1.]\n [2. 1. 1. 1.]]\n"
