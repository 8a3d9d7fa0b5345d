"""Writing a run's report: one HTML file that needs nothing else."""

from __future__ import annotations

from html import escape
from importlib.resources import files
from pathlib import Path

from retexo_fl.errors import CheckpointError
from retexo_fl.files import write_whole
from retexo_fl.report import classes, clients, curves, network, sections, types
from retexo_fl.report.read import RunRecord, read_run
from retexo_fl.run_status import correct_status

# The page declares that it loads nothing from anywhere.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"


def write_report(run_dir: Path) -> Path:
    """Write ``report.html`` into a run directory, replacing an earlier one.

    Where the run ended between its results and its last ``status.json``, that is corrected.

    Args:
        run_dir: Directory of a run, finished or not.

    Returns:
        The path of the report.

    Raises:
        RunDirectoryError: No run is there, or a file is damaged.
        CheckpointError: The report could not be written.
    """
    correct_status(run_dir)
    page = render(read_run(run_dir))
    path = run_dir / "report.html"
    try:
        write_whole(path, [page.encode(errors="backslashreplace")])
    except OSError as error:
        raise CheckpointError(f"{path}: could not be written ({error.strerror})") from error
    return path


def render(run: RunRecord) -> str:
    """Return the report as HTML."""
    body = "".join(
        (
            sections.header(run),
            sections.notes(run),
            sections.cards(run),
            curves.accuracy_section(run.course),
            classes.classes_section(run),
            types.types_section(run),
            curves.stages_section(run.course),
            sections.kinds_section(run),
            sections.plan_section(run),
            network.network_section(run),
            clients.clients_section(run),
            sections.config_section(run),
            sections.footer(run),
        )
    )
    dataset = run.result.dataset if run.result else run.config.get("dataset", run.name)
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{escape(dataset)}, a run of retexo_fl</title>\n"
        f"<style>\n{_resource('page.css')}</style>\n</head>\n"
        f"<body>\n<main>{body}</main>\n"
        f"<script>\n{_resource('page.js')}</script>\n</body>\n</html>\n"
    )


def _resource(name: str) -> str:
    return files("retexo_fl.report").joinpath(name).read_text(encoding="utf-8")
