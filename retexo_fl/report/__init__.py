"""The report of a run: one HTML file, made from the run directory."""

from __future__ import annotations

from retexo_fl.report.page import write_report

__all__ = ["write_report"]
