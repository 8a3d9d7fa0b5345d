"""``retexo agent run | status | stop | forget``: the resident process of a client's machine."""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from retexo_fl.cli.groups import CommandGroup
from retexo_fl.cli.help_text import examples
from retexo_fl.cli.sentences import tell
from retexo_fl.cli.superlink import DEPLOYMENT, Insecure, RootCertificates
from retexo_fl.errors import ConfigurationError
from retexo_fl.outlet import stdout_is_terminal

if TYPE_CHECKING:
    from retexo_fl.agent.settings import AgentSettings

_EXAMPLES = examples(
    "retexo agent run --config agent.toml",
    "retexo agent run --config agent.toml --superlink HOST:8000 --root-certificates ca.crt "
    "--supernode-key supernode-key",
    "retexo agent status --config agent.toml",
    "retexo agent status --watch --config agent.toml",
    "retexo agent status --questions --config agent.toml",
)
_Config = Annotated[Path, typer.Option("--config", metavar="FILE", help="The agent's settings.")]
_DEFAULT = Path("/etc/retexo/agent.toml")


def add_to(app: typer.Typer) -> None:
    """Register the commands, as a group."""
    group = typer.Typer(
        cls=CommandGroup,
        no_args_is_help=True,
        help="Run and control the agent: the process that holds a client's part and its links.",
        rich_markup_mode="rich",
        epilog=_EXAMPLES,
    )
    for function in (_run, _status, _stop, _forget, _reset_counter):
        name = function.__name__.removeprefix("_").replace("_", "-")
        group.command(name, epilog=_EXAMPLES)(function)
    app.add_typer(group, name="agent")


def _run(
    config: _Config = _DEFAULT,
    superlink: Annotated[
        str,
        typer.Option(
            help=(
                "Fetch messages from this SuperLink directly, without a SuperNode and its "
                "ClientApps."
            ),
            metavar="HOST:PORT",
            rich_help_panel=DEPLOYMENT,
        ),
    ] = "",
    root_certificates: RootCertificates = None,
    supernode_key: Annotated[
        Path | None,
        typer.Option(
            help="Private key that identifies this node to the SuperLink.",
            metavar="FILE",
            rich_help_panel=DEPLOYMENT,
        ),
    ] = None,
    insecure: Insecure = False,
) -> None:
    """Serve this machine's part until stopped.

    Options of the deployment override the keys of the same names in the settings file.
    """
    from retexo_fl.agent.state_folder import owned_state

    given: dict[str, Any] = {"superlink": superlink, "insecure": insecure}
    files = {"root_certificates": root_certificates, "supernode_key": supernode_key}
    given |= {name: str(path.absolute()) for name, path in files.items() if path}
    settings = _settings(config, **{name: value for name, value in given.items() if value})
    if superlink and settings.meter:
        raise ConfigurationError(
            f"superlink: expected none with meter in {config}, by which a SuperNode asks; take "
            "meter out of the file, or leave --superlink out"
        )
    # Plug-ins of allow-plugins come from what is installed, not from where this was started.
    sys.path[:] = [place for place in sys.path if Path(place).is_absolute()]
    with owned_state(Path(settings.state)):
        from retexo_fl.late_modules import import_late

        import_late()
        # Imported by the owner of the state only: it takes seconds and memory.
        from retexo_fl.agent.process import run_agent

        if not settings.is_own_node:
            run_agent(settings)
            return
        from retexo_fl.federation.own_node import OwnNode

        run_agent(settings, OwnNode(settings))


def _status(
    config: _Config = _DEFAULT,
    questions: Annotated[
        bool,
        typer.Option(
            "--questions",
            help=(
                "Show which questions about the part were answered, from the log in the "
                "agent's state folder; works without the agent."
            ),
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print every field, as JSON.")] = False,
    watch: Annotated[
        bool, typer.Option("--watch", help="Refresh every 2 s until Ctrl-C, in a terminal.")
    ] = False,
) -> None:
    """Show what the agent does: its jobs, its peers, its bytes."""
    if watch and (questions or as_json or not stdout_is_terminal()):
        raise ConfigurationError("watch: expected a terminal, without --questions and --json")
    if questions:
        _show_questions(_settings(config), as_json=as_json)
        return
    from retexo_fl.agent.remote import ask_agent

    ask = partial(ask_agent, Path(_settings(config).socket), "status")
    if as_json:
        typer.echo(json.dumps(ask(), indent=2))
        return
    from retexo_fl.cli.agent_status import show_status, watch_status

    if watch:
        watch_status(ask)
    else:
        show_status(ask())


def _show_questions(settings: AgentSettings, *, as_json: bool) -> None:
    from dataclasses import asdict

    from retexo_fl.agent.promises import part_digest
    from retexo_fl.agent.question_log import QuestionLog
    from retexo_fl.cli.agent_status import show_questions

    log = QuestionLog(
        Path(settings.state), part_digest(Path(settings.partition)), settings.most_questions
    )
    if as_json:
        typer.echo(json.dumps([asdict(answered) for answered in log.read()], indent=2))
        return
    show_questions(log)


def _stop(config: _Config = _DEFAULT) -> None:
    """Stop the agent. Its results are on disk; a training continues once the agent runs again."""
    from retexo_fl.agent.remote import ask_agent
    from retexo_fl.agent.state_folder import wait_until_free

    settings = _settings(config)
    ask_agent(Path(settings.socket), "stop")
    wait_until_free(Path(settings.state))
    tell("stopped")


def _forget(
    job: Annotated[str, typer.Argument(help="Name of the job, as `retexo agent status` shows it.")],
    config: _Config = _DEFAULT,
) -> None:
    """Delete the agent's data of a job. The job cannot be resumed after that."""
    from retexo_fl.agent.remote import ask_agent

    known = ask_agent(Path(_settings(config).socket), "forget", job=job)["known"]
    tell(f"{job}: forgotten" if known else f"{job}: this agent has no such job")


def _reset_counter(
    client: Annotated[int, typer.Argument(help="Index of the other client.", min=0)],
    config: _Config = _DEFAULT,
) -> None:
    """Trust another client again whose machine was set up anew.

    Under masks, agents remember how often each other agent of their cohort was started and how many
    questions it answered. They refuse lower counters, since these mean that a state folder was
    restored. Ask that owner first. The agent here may keep running.
    """
    from retexo_fl.agent.counters import CounterFile

    file = CounterFile(Path(_settings(config).state))
    known = file.reset(client)
    tell(f"client {client}: forgotten" if known else f"{file.path}: client {client} is not in it")


def _settings(path: Path, **given: Any) -> AgentSettings:
    from retexo_fl.agent.settings import read_settings

    return read_settings(path, **given)
