"""``retexo run``: train, watch it happen, and find the results."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from retexo_fl.cli.imports import imports_uncollected
from retexo_fl.cli.options import PROFILE_OPTION, Values, config_command, examples
from retexo_fl.cli.sentences import complain, printable, tell
from retexo_fl.cli.settling import deployed_values, deployment_address, fitted, resumed, settled
from retexo_fl.cli.superlink import Address
from retexo_fl.config import (
    FITTED,
    RunConfig,
    config_values,
    default_profile,
    make_config,
    panels,
    read_config_file,
)
from retexo_fl.errors import ConfigurationError, Interrupted, PluginError, RetexoError
from retexo_fl.units import format_bytes, format_duration

if TYPE_CHECKING:
    from retexo_fl.graph import GraphPartition
    from retexo_fl.run_log.result import Result

#: Fits what nobody chose to the graph, once it is there, and says to what.
Fit: TypeAlias = "partial[tuple[RunConfig, str]]"

_HELP = """Train a GNN over a partitioned graph and write a run directory.

Without options it trains on handwritten digits, a graph that comes with the installation, \
split over five clients, by `--profile lean`; `--profile retexo` is the paper's schedule. Stop it \
with Ctrl-C; continue it with `--resume`.
"""
#: Heading of the options of a deployment, which are no keys: they say where to train, once.
_DEPLOYMENT = "Deployment"
_EXAMPLES = examples(
    "retexo run --out runs/first",
    "retexo run --data-dir DIR --dataset cora --clients 2 --model gcn",
    "retexo run --profile retexo --rounds 100",
    "retexo run --nodes nodes.csv --edges edges.csv --clients 3",
    "retexo run --nodes accounts.csv --edges transfers.csv --features auto --key-column account "
    "--label-column fraud",
    "retexo run --algorithm central --clients 1 --sampler neighbour --fanouts 15/10 --devices auto",
    "retexo run --resume runs/first",
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
    quiet: Annotated[bool, typer.Option("--quiet", help="Show no progress.")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Train even if memory is not enough.")
    ] = False,
    superlink: Annotated[
        str | None,
        typer.Option(
            help="Train with the clients of this SuperLink (engine deployment).",
            metavar="HOST:PORT",
            rich_help_panel=_DEPLOYMENT,
        ),
    ] = None,
    root_certificates: Annotated[
        Path | None,
        typer.Option(help="CA of the SuperLink.", metavar="FILE", rich_help_panel=_DEPLOYMENT),
    ] = None,
    insecure: Annotated[
        bool,
        typer.Option(
            "--insecure", help="Connect to the SuperLink without TLS.", rich_help_panel=_DEPLOYMENT
        ),
    ] = False,
) -> None:
    address = deployment_address(superlink, root_certificates, insecure=insecure)
    if address is not None:
        values = deployed_values(values)
    settle = resumed if "resume" in values else settled
    if profile is None and "resume" not in values:
        profile = default_profile({**(read_config_file(config) if config else {}), **values})
    chosen = settle(values, config, profile=profile)
    chosen, run_path = _placed(chosen, deployed=address is not None)
    with imports_uncollected():
        _check_plugins(chosen)
    _check_address(chosen, address)
    fit = partial(fitted, values=values, file=config, profile=profile)
    try:
        is_here = _train(chosen, run_path, fit, address=address, quiet=quiet, force=force)
    except KeyboardInterrupt:
        raise Interrupted(f"interrupted; {_what_now(run_path, address)}") from None
    except RetexoError as error:
        if error.exit_code != 1:
            raise
        raise type(error)(f"{error}; {_what_now(run_path, address)}") from error
    if not is_here:
        tell(f"results         {run_path} where the SuperLink runs")
        return
    result = _result_of(run_path)
    if quiet:
        # Else the table has them.
        for warning in result.warnings:
            complain(f"warning: {warning}")
    tell(_summary(result, run_path))


def _placed(config: RunConfig, *, deployed: bool) -> tuple[RunConfig, Path]:
    """Return the configuration with an absolute run directory, and that."""
    from retexo_fl.federation.run_directory import check_free, default_path

    if config.resume:
        path = Path(config.resume).absolute()
        return make_config({**config_values(config), "resume": str(path)}), path
    path = Path(config.out).absolute() if config.out else default_path(config)
    # In a deployment it is made where the SuperLink runs.
    if not deployed or os.path.exists(path):  # noqa: PTH110 - never raises
        check_free(path)
    return make_config({**config_values(config), "out": str(path)}), path


def _check_address(config: RunConfig, address: Address | None) -> None:
    if config.engine == "deployment" and address is None:
        raise ConfigurationError(
            "engine: got deployment without a SuperLink; expected --superlink HOST:PORT"
        )


def _check_plugins(config: RunConfig) -> None:
    """Find what the configuration names while nothing is written yet."""
    from retexo_fl.federation.aggregators import make_aggregator
    from retexo_fl.layers.named import layer_class
    from retexo_fl.simulation.links import read_links
    from retexo_fl.training.recipe import Recipe

    Recipe.of(config)
    try:
        layer_class(config.model)
    except PluginError as error:
        raise PluginError(f"model: {error}") from error
    make_aggregator(config.aggregator).check_clients(config.min_clients or config.clients)
    read_links(config.links, clients=config.clients)
    _check_devices(config)


def _check_devices(config: RunConfig) -> None:
    """Check what a text's form does not show."""
    from retexo_fl.devices.names import parse_devices

    parse_devices(config.devices)
    if config.sampler != "none":
        from retexo_fl.training.sampler_choice import SamplerChoice

        SamplerChoice.of(config, client=0)


def _say_devices(config: RunConfig) -> None:
    """Say what of the devices is here, where the clients are."""
    if config.devices != "cpu":
        from retexo_fl.training.client_devices import ClientDevices

        complain(ClientDevices.of(config).settled.sentence)


def _say_what_is_not_added(config: RunConfig) -> None:
    """Say that datagrams, where agents take them, gain nothing from this run's plan."""
    from retexo_fl.training.effective_plan import effective_plan

    if config.codec == "fixed" and config.algorithm == "lazy" and effective_plan(config) == "rows":
        complain(
            "boundary-plan: rows sends no sums for agents at xdp:// or udp:// to add up; "
            "expected --boundary-plan cover with gcn, sage or gin, or agents at tcp:// only"
        )


def _train(
    config: RunConfig,
    run_path: Path,
    fit: Fit,
    *,
    address: Address | None,
    quiet: bool,
    force: bool,
) -> bool:
    """Train; return whether the run directory is on this machine."""
    from retexo_fl.progress import LiveTable

    table = LiveTable(
        dataset=config.graph_name, model=config.model, engine=config.engine, quiet=quiet
    )
    if address is not None:
        from retexo_fl.cli.deployed_run import run_deployed

        _say_what_is_not_added(config)
        _say_what_is_not_fitted(fit)
        return run_deployed(config, run_path, table, address=address, quiet=quiet)
    if config.engine == "flower":
        from retexo_fl.cli.flower_run import run_on_flower

        _say_devices(config)
        run_on_flower(config, run_path, table, partial(_fitted, fit, quiet=quiet), quiet=quiet)
        return True
    with imports_uncollected():
        from retexo_fl.client.preparation import keep_recipe, load_parts
        from retexo_fl.client.run_memory import GraphSize, check_memory, memory_sentence
        from retexo_fl.simulation.inline_engine import run_inline

    foreseen = GraphSize.foreseen(config)
    if foreseen is not None and not force:
        check_memory(config, foreseen)
    parts = load_parts(config, quiet=quiet)
    config = _fitted(fit, config, parts, quiet=quiet)
    size = GraphSize.of(parts)
    if not force:
        check_memory(config, size)
    if not quiet:
        complain(memory_sentence(config, size))
    _say_devices(config)
    with table:
        run_inline(config, parts, [table.handle])
    keep_recipe(parts[0].recipe, run_path)
    return True


def _say_what_is_not_fitted(fit: Fit) -> None:
    """Say that a profile was chosen without a look at the graph, which is elsewhere."""
    if fit.keywords["profile"] in FITTED:
        complain(
            f"profile: {fit.keywords['profile']} as it is for any graph, as this one is not here; "
            "`retexo plan` with the profile says, where a graph is, which keys fit it"
        )


def _fitted(
    fit: Fit, config: RunConfig, parts: Sequence[GraphPartition], *, quiet: bool
) -> RunConfig:
    fitting, told = fit(config, parts)
    if told and not quiet:
        complain(told)
    return fitting


def _what_now(run_path: Path, address: Address | None) -> str:
    if (run_path / "result.json").exists():
        return f"the training is finished; its results are in {run_path}"
    if (run_path / "checkpoint.safetensors").exists():
        where = f" {address.options()}" if address else ""
        return f"go on with: retexo run --resume {shlex.quote(str(run_path))}{where}"
    if address and not run_path.exists():
        return f"any checkpoint is in {run_path} where the SuperLink runs"
    return "there is no checkpoint to resume from"


def _result_of(run_path: Path) -> Result:
    from retexo_fl.run_log.result import read_result

    path = run_path / "result.json"
    return read_result(path.read_text(encoding="utf-8"), str(path))


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
        lines.insert(0, f"{f'test {printable(metric.name)}':<15} {value}")
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
