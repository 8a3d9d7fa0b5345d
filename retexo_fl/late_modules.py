"""Modules of NumPy and PyTorch that no training uses, executed where somebody does use them.

``import scipy.sparse`` copies all names of NumPy, a compiler of Fortran among them, and ``import
torch`` has all that a notebook may want: 8 MB. An agent, which is resident, finds these modules and
executes one when an attribute of it is asked for.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from threading import RLock
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, cast

if TYPE_CHECKING:
    from importlib.abc import Loader

#: What their packages import after them needs none of them. Of PyTorch others cost more, such as
#: ``torch._meta_registrations``, but its random numbers fail without what that imports.
_LATE: Final = frozenset(
    {
        *("numpy.ctypeslib", "numpy.f2py", "numpy.polynomial", "numpy.testing"),
        *("torch.distributions", "torch.masked"),
        *("torch._size_docs", "torch._storage_docs", "torch._tensor_docs"),
    }
)
#: A command line with highlighting, without which its package does.
_UNUSED: Final = "httpx._main"
_LOADER: Final = "_late_loader"
_PATH: Final = "__path__"
_lock: Final = RLock()


def import_late() -> None:
    """Have these modules executed late, where they are not imported yet."""
    # By Python's reference an import of it fails then, for which its package is prepared.
    sys.modules.setdefault(_UNUSED, None)  # type: ignore[arg-type]
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


class _Finder:
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in _LATE:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = cast("Loader", _LateLoader(spec.loader))
        return spec


class _LateLoader:
    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self._loader
        # What is in the package needs the package.
        module.__dict__.pop(_PATH, None)
        module.__dict__[_LOADER] = self._loader
        module.__class__ = _LateModule


class _LateModule(ModuleType):
    def __getattr__(self, name: str) -> Any:
        """Execute the module first; its own code, which looks for a name, finds what there is."""
        _execute(self)
        return ModuleType.__getattribute__(self, name)


def _execute(module: ModuleType) -> None:
    with _lock:
        loader = module.__dict__.pop(_LOADER, None)
        if loader is None:
            return
        assert module.__spec__ is not None
        if module.__spec__.submodule_search_locations is not None:
            module.__dict__[_PATH] = module.__spec__.submodule_search_locations
        try:
            loader.exec_module(module)
        except BaseException:
            # Whoever asks next meets with the same failure.
            module.__dict__[_LOADER] = loader
            raise
        module.__class__ = ModuleType
