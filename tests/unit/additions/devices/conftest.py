"""Fixtures of several rooms of devices."""

from __future__ import annotations

from tests.support.forked_workers import forked_workers  # noqa: F401 - a fixture
