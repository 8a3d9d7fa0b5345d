"""Heavy imports of commands that a person waits for."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def imports_uncollected() -> Iterator[None]:
    """Import without looking for garbage among what stays.

    PyTorch makes hundreds of thousands of objects. Python's collector goes through them again and
    again while they are made, and later whenever it looks through everything: a tenth of a short
    run.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
