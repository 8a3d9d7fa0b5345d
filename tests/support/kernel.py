"""What tests of programs in the kernel need of the machine that they run on."""

from __future__ import annotations

import pytest

from retexo_fl.additions.kernel_path.xdp.probe import probe


def require_bpf() -> None:
    """Skip the calling test where no program can be loaded; `CI=true` makes that a failure."""
    found = probe()
    if not found.ok:
        pytest.skip(f"needs root and BPF: {found.reason}")
