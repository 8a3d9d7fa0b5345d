"""``retexo run``: train, watch it happen, and find the results."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from retexo_fl.api.metrics_file import PrometheusFile
from retexo_fl.api.settling import Asked, masked_if_possible, resumed, settled
from retexo_fl.api.training import (
    Training,
    check_plugins,
    named_end,
    placed,
    result_of,
    what_now,
)
from retexo_fl.cli.help_text import examples
from retexo_fl.cli.imports import imports_uncollected
from retexo_fl.cli.options import (
    PROFILE_OPTION,
    AsJson,
    Overwrite,
    RayAddress,
    Values,
    config_command,
)
from retexo_fl.cli.sentences import complain, printable, tell, tell_json
from retexo_fl.cli.superlink import (
    DEPLOYMENT,
    Address,
    Insecure,
    RootCertificates,
    deployed_values,
    deployment_address,
)
from retexo_fl.config import RunConfig, config_values, named_plugins, panels
from retexo_fl.config.file import read_config_file
from retexo_fl.errors import ConfigurationError
from retexo_fl.files import FileStamp, file_stamp
from retexo_fl.run_log.json_form import to_json
from retexo_fl.simulation.ray_cluster import ray_address_of
from retexo_fl.units import format_bytes, format_counted, format_duration

if TYPE_CHECKING:
    from retexo_fl.run_log.result import Result

_HELP = """Train a GNN over a partitioned graph and write a run directory.

Without options it trains on handwritten digits, a graph that comes with the installation, \
split over five clients, by `--profile lean`; `--profile retexo` is the paper's schedule. Stop it \
with Ctrl-C; continue it with `--resume`.
"""
_EXAMPLES = examples(
    "retexo run --out runs/first",
    "retexo run --data-dir DIR --dataset cora --clients 2 --model gcn",
    "retexo run --profile retexo --rounds 100",
    "retexo run --nodes nodes.csv --edges edges.csv --clients 3",
    "retexo run --nodes accounts.csv --edges transfers.csv --features auto --key-column account "
    "--label-column fraud",
    "retexo run --algorithm central --clients 1 --sampler neighbour --fanouts 15/10 --devices auto",
    "retexo run --resume runs/first",
    "retexo run --resume runs/first --extend 20",
    "retexo run --nodes accounts.csv --edges transfers.csv --cuts monthly --out runs/months",
    "retexo run --superlink HOST:8000 --root-certificates ca.crt --clients 4",
)


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    config_command(app, "run", panels(), help_text=_HELP, epilog=_EXAMPLES)(_run)


def _run(  # noqa: PLR0913 - each is an option
    values: Values,
    *,
    config: Annotated[
        Path | None,
        typer.Option(
            help="TOML file of the keys below, such as a run's config.toml; options win.",
            metavar="FILE",
        ),
    ] = None,
    profile: Annotated[str | None, PROFILE_OPTION] = None,
    as_json: AsJson = False,
    extend: Annotated[
        int,
        typer.Option(
            help=(
                "With --resume: train a finished run for this many more rounds: its last "
                "layer, or the whole model of standard, bns, drop and central."
            ),
            metavar="ROUNDS",
            min=0,
            show_default=False,
        ),
    ] = 0,
    allow_plugins: Annotated[
        bool,
        typer.Option(
            "--allow-plugins",
            help="With --resume: import the module:attribute that RUN's configuration names.",
        ),
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show no progress.")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Train even if memory is not enough.")
    ] = False,
    overwrite: Overwrite = False,
    cuts: Annotated[
        str,
        typer.Option(
            help=(
                "Train once per cut in time, and test on the edges up to the next cut: "
                "monthly, daily, weekly, quarterly, yearly, or dates A,B,C. --out is then the"
                " folder of all runs."
            ),
            metavar="WHEN",
            show_default=False,
        ),
    ] = "",
    ray_address: RayAddress = None,
    metrics_file: Annotated[
        Path | None,
        typer.Option(
            help=(
                "Write the run's metrics to this file, for the textfile collector of "
                "Prometheus' node_exporter."
            ),
            metavar="FILE.prom",
            show_default=False,
        ),
    ] = None,
    superlink: Annotated[
        str | None,
        typer.Option(
            help="Train with the clients of this SuperLink (engine deployment).",
            metavar="HOST:PORT",
            rich_help_panel=DEPLOYMENT,
        ),
    ] = None,
    root_certificates: RootCertificates = None,
    insecure: Insecure = False,
) -> None:
    address = deployment_address(superlink, root_certificates, insecure=insecure)
    _check_resumed(values, extend=extend, allow_plugins=allow_plugins)
    if cuts:
        if address is not None or force or ray_address is not None or metrics_file is not None:
            raise ConfigurationError(
                "cuts: cannot be given with superlink, force, ray-address or metrics-file"
            )
        _roll(values, cuts, config, profile, as_json=as_json, quiet=quiet, overwrite=overwrite)
        return
    if address is not None:
        values = deployed_values(values)
    asked = Asked(
        values=values,
        file=config,
        profile=profile,
        extend=extend,
        overwrite=overwrite,
        allow_plugins=allow_plugins,
    ).of_run()
    with imports_uncollected():
        chosen, told = _chosen(asked, address)
        cluster = ray_address_of(ray_address, chosen.engine)
        chosen, run_path = placed(chosen, made_here=address is None, overwrite=overwrite)
        check_plugins(chosen)
        if chosen.engine == "inline":
            import_module("retexo_fl.simulation.inline_engine")
            import_module("retexo_fl.client.factory")
    _check_address(chosen, address)
    training = Training(
        config=chosen,
        run_path=run_path,
        asked=asked,
        tell=complain,
        quiet=quiet,
        force=force,
        ray_address=cluster,
    )
    listeners = [] if metrics_file is None else [PrometheusFile(metrics_file, run_path.name)]
    replaced = file_stamp(run_path / "status.json") if overwrite else None
    with named_end(partial(_what_now, training, address, replaced)):
        is_here = _train(training, address, told, listeners)
    if not is_here:
        _tell_elsewhere(run_path, as_json=as_json, metrics_file=metrics_file)
        return
    result = result_of(run_path)
    if quiet:
        # Else the table has them.
        for warning in result.warnings:
            complain(f"warning: {warning}")
    if as_json:
        tell_json({"run": str(run_path), "result": to_json(result)})
    else:
        tell(_summary(result, run_path))


def _tell_elsewhere(run_path: Path, *, as_json: bool, metrics_file: Path | None) -> None:
    """Say where the results are of a run whose directory is not on this machine."""
    if metrics_file is not None:
        complain(
            f"metrics-file: {metrics_file} has no figures: the run's events are where the "
            "SuperLink runs; expected the command to be run there"
        )
    if as_json:
        tell_json({"run": str(run_path), "result": None})
    else:
        tell(f"results         {run_path} where the SuperLink runs")


def _check_resumed(values: Values, *, extend: int, allow_plugins: bool) -> None:
    if extend and "resume" not in values:
        raise ConfigurationError("extend: expected --resume RUN with it, a finished run")
    if allow_plugins and "resume" not in values:
        raise ConfigurationError("allow-plugins: expected --resume RUN with it")


def _roll(
    values: Values,
    cuts: str,
    file: Path | None,
    profile: str | None,
    *,
    as_json: bool,
    quiet: bool,
    overwrite: bool,
) -> None:
    """Train and judge at each cut; print the table."""
    from retexo_fl.api.cuts import rolling_of
    from retexo_fl.api.sweeps import CUTS_NAME, checked_keys
    from retexo_fl.cli.cut_table import cut_table, failures
    from retexo_fl.cli.tables import show

    given = {**({} if file is None else read_config_file(file)), **values}
    out = given.pop("out", "")
    if not out:
        raise ConfigurationError("out: missing; expected a folder for all runs with cuts")
    keys = checked_keys({**given, **({} if profile is None else {"profile": profile})})
    told = (lambda _: None) if quiet else complain
    rows = rolling_of(keys, cuts, Path(str(out)), tell=told, overwrite=overwrite)
    if as_json:
        tell_json(rows.cells())
    else:
        place = printable(str(Path(str(out)) / CUTS_NAME))
        show(cut_table(rows), *failures(rows), f"table           {place}")
    if any(row.failure for row in rows):
        raise typer.Exit(1)


def _chosen(asked: Asked, address: Address | None) -> tuple[RunConfig, str]:
    """Return the configuration that is asked for, and what a deployment was given by default."""
    if "resume" in asked.values:
        return resumed(asked), ""
    chosen = settled(asked)
    if address is None:
        return chosen, ""
    return masked_if_possible(chosen, {**asked.in_file, **asked.values})


def _check_address(config: RunConfig, address: Address | None) -> None:
    if config.engine == "deployment" and address is None:
        raise ConfigurationError(
            "engine: got deployment without a SuperLink; expected --superlink HOST:PORT"
        )


def _say_what_is_not_added(config: RunConfig) -> None:
    """Say that datagrams, where agents take them, gain nothing from this run's plan."""
    from retexo_fl.methods.forecasts import forecast_of

    if forecast_of(config).adds_nothing(config):
        complain(
            "boundary-plan: rows sends no sums for agents at xdp:// or udp:// to add up; "
            "expected --boundary-plan cover with gcn, sage or gin, or agents at tcp:// only"
        )


def _train(
    training: Training, address: Address | None, told: str, listeners: Sequence[PrometheusFile]
) -> bool:
    """Train; say what a deployment was given; return whether the run directory is here."""
    from retexo_fl.progress import LiveTable

    config, quiet = training.config, training.quiet
    table = LiveTable.of_run(config, quiet=quiet)
    if address is None:
        training.run(table, listeners)
        return True
    from retexo_fl.api.profile_choice import named_profile
    from retexo_fl.cli.deployed_run import check_superlink, run_deployed

    if told:
        # What cannot begin ends in one line.
        check_superlink(address)
        complain(told)
    _say_what_is_not_added(config)
    is_new = not config.resume
    return run_deployed(
        config,
        training.run_path,
        table,
        address=address,
        quiet=quiet,
        profile=named_profile(training.asked) if is_new else None,
        fitting=training.asked.fitting if is_new else None,
        overwrite=training.asked.overwrite,
        listeners=listeners,
    )


def _what_now(training: Training, address: Address | None, replaced: FileStamp | None) -> str:
    run_path = training.run_path
    if address and not run_path.exists():
        return f"any checkpoint is in {run_path} where the SuperLink runs"
    where = f" {address.options()}" if address else ""
    where += " --allow-plugins" if named_plugins(config_values(training.config)) else ""
    resume = f"retexo run --resume {shlex.quote(str(run_path))}{where}"
    return what_now(run_path, resume, replaced=replaced)


def _summary(result: Result, run_path: Path) -> str:
    payload = result.volumes["payload"]
    lines = [
        *_figures(result),
        f"bytes moved     {format_bytes(payload['total'])}, "
        f"of which between clients {format_bytes(payload['boundary'])}",
        *_times(result),
        f"report          {printable(str(run_path / 'report.html'))}",
    ]
    return "\n".join(lines)


def _figures(result: Result) -> list[str]:
    """Return how good the model is: by the metric that was chosen, and by accuracy."""
    accuracy, metric = result.test_accuracy, result.metric
    if not any(row.test for row in result.client_table):
        name = "accuracy" if metric is None else printable(metric.name)
        return [f"{f'test {name}':<15} no test nodes"]
    # There are no right answers of numbers.
    lines = [] if accuracy is None else [f"test accuracy   {accuracy:.4f}"]
    if metric is not None:
        value = "undefined on these nodes" if metric.value is None else f"{metric.value:.4f}"
        if metric.ranked_among is not None:
            value += (
                f" (each node among {metric.ranked_among:,.1f} that its client knows, on average)"
            )
        lines.insert(0, f"{f'test {printable(metric.name)}':<15} {value}")
    for one in result.types:
        if one.test:
            told = ", ".join(f"{printable(n)} {value:.4f}" for n, value in one.figures().items())
            of = format_counted(one.test, "test node")
            lines.append(f"{f'of {printable(one.name)}':<15} {told or 'undefined'} of {of}")
    if result.profile is not None and (degrees := result.profile.degrees_auc) is not None:
        ranked, named = result.profile.degrees_metric, ""
        if ranked is not None and metric is not None:
            named = f"{ranked:.4f} ({printable(metric.name)}), "
        lines.append(f"degrees alone   {named}{degrees:.4f} (ROC AUC of test edges)")
    return lines


def _times(result: Result) -> list[str]:
    """Return seconds on a modelled network, apart from those that computing took here."""
    network = result.network
    if network is None:
        return []
    last = ", last attempt" if result.attempts > 1 else ""
    modelled = f"modelled, {network.links}{last}"
    return [
        f"compute         {format_duration(result.seconds['total'])} (measured)",
        f"network         {format_duration(network.seconds)} ({modelled})",
    ]
