"""``retexo run``: train, watch it happen, and find the results."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from retexo_fl.cli.options import Values, config_command
from retexo_fl.config import (
    RunConfig,
    config_values,
    key_infos,
    make_config,
    read_config_file,
)
from retexo_fl.errors import ConfigurationError, Interrupted, RetexoError
from retexo_fl.progress import LiveTable
from retexo_fl.units import format_bytes

_HELP = """Train a GNN over a partitioned graph and write a run directory.

Without options it trains on handwritten digits, a graph that comes with the installation, split
over five clients. Stop it with Ctrl-C and go on with `--resume`.
"""
_EXAMPLES = """Examples:

`retexo run --out runs/first`

`retexo run --dataset cora --data-dir DIR --clients 2 --model gcn --hidden 256 --rounds 100`

`retexo run --resume runs/first`
"""


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    config_command(app, "run", key_infos(), help_text=_HELP, epilog=_EXAMPLES)(_run)


def _run(
    values: Values,
    *,
    config: Annotated[
        Path | None, typer.Option(help="TOML file of keys, such as a run's config.toml.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show no progress.")] = False,
) -> None:
    from retexo_fl.federation.run_directory import check_free, default_path

    settled = _settle(values, config)
    if settled.resume:
        run_path = Path(settled.resume).absolute()
    else:
        run_path = Path(settled.out).absolute() if settled.out else default_path(settled)
        check_free(run_path)
        settled = make_config({**config_values(settled), "out": str(run_path)})
    name = Path(settled.partitions).name if settled.partitions else settled.dataset
    table = LiveTable(dataset=name, model=settled.model, engine=settled.engine, quiet=quiet)
    engine = _run_flower if settled.engine == "flower" else _run_inline
    try:
        engine(settled, run_path, table)
    except KeyboardInterrupt:
        raise Interrupted(f"interrupted; {_how_to_resume(run_path)}") from None
    except RetexoError as error:
        if error.exit_code != 1:
            raise
        raise type(error)(f"{error}; {_how_to_resume(run_path)}") from error
    typer.echo(_summary(run_path))


def _settle(values: Values, config_file: Path | None) -> RunConfig:
    """Join file and options; a resume takes the run's own configuration."""
    from retexo_fl.agent.preparation import part_paths
    from retexo_fl.federation.run_directory import check_resumable

    if "resume" in values:
        stored = check_resumable(Path(str(values["resume"])))
        movable = {"resume", "engine", "partitions", "data-dir"}
        fixed = sorted(set(values) - movable)
        if fixed or config_file:
            named = fixed[0] if fixed else "config"
            raise ConfigurationError(
                f"{named}: cannot be given with --resume, which takes the run's own configuration"
            )
        return make_config({**config_values(stored), **values})
    merged: dict[str, object] = read_config_file(config_file) if config_file else {}
    merged |= values
    if merged.get("partitions") and "clients" not in merged:
        merged["clients"] = len(part_paths(Path(str(merged["partitions"]))))
    return make_config(merged)


def _run_inline(config: RunConfig, run_path: Path, table: LiveTable) -> None:
    from retexo_fl.agent.preparation import load_parts
    from retexo_fl.simulation.inline_engine import run_inline

    del run_path
    parts = load_parts(config)
    with table:
        run_inline(config, parts, [table.handle])


def _run_flower(config: RunConfig, run_path: Path, table: LiveTable) -> None:
    """Run Flower's simulation on parts that are cut here, so that bad input ends at once."""
    from retexo_fl.agent.factory import SCRATCH_VARIABLE
    from retexo_fl.agent.preparation import load_parts, make_parts
    from retexo_fl.graph import write_partitions
    from retexo_fl.simulation.flower_engine import run_flower_simulation

    with tempfile.TemporaryDirectory(prefix="retexo-") as scratch_name:
        scratch = Path(scratch_name)
        if config.partitions:
            load_parts(config)
            parts = Path(config.partitions).absolute()
        else:
            parts = scratch / "parts"
            write_partitions(make_parts(config), parts)
        values = {**config_values(config), "partitions": str(parts)}
        with table:
            follow = _follow(run_path / "metrics.jsonl", table.handle)
            run_flower_simulation(
                values,
                num_clients=config.clients,
                tick=follow,
                extra_environment={SCRATCH_VARIABLE: str(scratch)},
            )
            follow()


def _follow(path: Path, handle: Callable[[dict[str, Any]], None]) -> Callable[[], None]:
    """Return a function that hands on the lines which a file has gained since its last call."""
    position = path.stat().st_size if path.exists() else 0

    def look() -> None:
        nonlocal position
        if not path.exists():
            return
        with path.open("rb") as file:
            # A resumed run cuts its history back to the checkpoint before it goes on.
            file.seek(min(position, path.stat().st_size))
            lines = file.read()
            whole = lines[: lines.rfind(b"\n") + 1]
            position = file.tell() - len(lines) + len(whole)
        for line in whole.splitlines():
            handle(json.loads(line))

    return look


def _how_to_resume(run_path: Path) -> str:
    if (run_path / "checkpoint.safetensors").exists():
        return f"go on with: retexo run --resume {run_path}"
    return "no round was finished, so there is nothing to resume"


def _summary(run_path: Path) -> str:
    result = json.loads((run_path / "result.json").read_text(encoding="utf-8"))
    accuracy = result["test_accuracy"]
    payload = result["bytes"]["payload"]
    lines = [
        f"test accuracy   {'no test nodes' if accuracy is None else f'{accuracy:.4f}'}",
        f"bytes moved     {format_bytes(payload['total'])}, "
        f"of which between clients {format_bytes(payload['boundary'])}",
        f"report          {run_path / 'report.html'}",
    ]
    return "\n".join(lines)
