"""Machine code for kernels on packets, made when they are imported and kept on disk."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, Final, ParamSpec, TypeVar, cast

import numba

from retexo_fl import machine_code

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")

_ROOM: Final = Path(__file__).parent


def compiled(
    *signatures: tuple[Any, ...],
) -> Callable[[Callable[_Parameters, _Result]], Callable[_Parameters, _Result]]:
    """Return a decorator that compiles a kernel now, for arguments of these types alone.

    Arguments of another type raise TypeError: no packet ever waits for a compiler.
    """

    def compile_now(function: Callable[_Parameters, _Result]) -> Callable[_Parameters, _Result]:
        return machine_code.compile_kernel(function, _kernel_folder(), signatures)

    return compile_now


def kernel_part(function: Callable[_Parameters, _Result]) -> Callable[_Parameters, _Result]:
    """Let a function be compiled into the kernels that call it."""
    return cast("Callable[_Parameters, _Result]", numba.njit(nogil=True)(function))


@cache
def _kernel_folder() -> Path | None:
    return machine_code.kernel_folder(_ROOM)
