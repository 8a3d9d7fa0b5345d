"""Machine code for kernels that walk over graphs, made at their first call and kept on disk."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Final, ParamSpec, TypeVar

from retexo_fl import machine_code
from retexo_fl.machine_code import sources_digest

__all__ = ["compiled", "kernel_folder", "sources_digest"]

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")

_ROOM: Final = Path(__file__).parent


def compiled(function: Callable[_Parameters, _Result]) -> Callable[_Parameters, _Result]:
    """Compile a function on arrays and numbers; while it runs, other threads run, too.

    A service without a folder that it may write to compiles anew in each process.
    """
    return machine_code.compile_kernel(function, kernel_folder())


@cache
def kernel_folder() -> Path | None:
    """Return where this room's machine code is kept; None where no place can be written to."""
    return machine_code.kernel_folder(_ROOM)
