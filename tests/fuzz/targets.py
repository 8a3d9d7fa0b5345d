"""All that is fuzzed."""

from __future__ import annotations

from pathlib import Path

from tests.fuzz.file_targets import file_targets
from tests.fuzz.mask_targets import mask_targets
from tests.fuzz.message_targets import message_targets
from tests.fuzz.peer_targets import peer_targets
from tests.fuzz.target import Target
from tests.fuzz.text_targets import text_targets

#: Names that stand for several parsers.
GROUPS = (
    *("frames", "links", "socket", "messages"),
    *("texts", "arrays", "tables", "parts", "runs"),
)


def all_targets(folder: Path) -> list[Target]:
    """Return every target.

    Args:
        folder: New and empty; of the files that are read.
    """
    (folder / "texts").mkdir()
    (folder / "files").mkdir()
    targets = [
        *peer_targets(),
        *message_targets(),
        *mask_targets(),
        *text_targets(folder / "texts"),
        *file_targets(folder / "files"),
    ]
    assert {target.group for target in targets} == set(GROUPS)
    return targets
