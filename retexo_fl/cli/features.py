"""``retexo features summarise | share | fit``: a recipe for the columns of clients' tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from retexo_fl.cli.groups import CommandGroup
from retexo_fl.cli.help_text import examples
from retexo_fl.cli.options import Decimal, Delimiter, Encoding, Overwrite, UnlabelledValues, Values
from retexo_fl.cli.sentences import complain, tell
from retexo_fl.cli.superlink import (
    DEPLOYMENT,
    Address,
    Insecure,
    RootCertificates,
    deployment_address,
)
from retexo_fl.config import Scalar, make_config
from retexo_fl.errors import ConfigurationError, Interrupted
from retexo_fl.files import bare_name, file_stamp, write_whole
from retexo_fl.replacing import check_new_file
from retexo_fl.units import format_count, format_counted

if TYPE_CHECKING:
    from retexo_fl.federation.recipe_app import RecipeTask
    from retexo_fl.graph.recipes import FeatureRecipe, FitOptions, TableSummary
    from retexo_fl.graph.recipes.summary import ColumnSummary
    from retexo_fl.graph.sources.tables import ColumnChoice

_SUMMARISE: Final = (
    "retexo features summarise accounts.csv --key-column account --label-column fraud "
    "--out north.json"
)
_FIT: Final = "retexo features fit north.json south.json --log balance --out recipe.toml"
_FIT_TABLE: Final = (
    "retexo features fit accounts.csv --key-column account --label-column fraud --drop branch "
    "--out recipe.toml"
)
_SHARE: Final = "retexo features share north.json --config agent.toml --out recipe.toml"
_FIT_DEPLOYED: Final = (
    "retexo features fit --superlink 203.0.113.10:8000 --root-certificates tls/ca.crt --clients 2 "
    "--out recipe.toml"
)
_Key = Annotated[str, typer.Option(help="Column of node keys; default 'key'.", metavar="NAME")]
_Label = Annotated[str, typer.Option(help="Column of labels; default 'label'.", metavar="NAME")]
_Columns = Annotated[
    str,
    typer.Option(
        help="Columns that become features; default all but key, label and split.", metavar="A,B"
    ),
]
_Drop = Annotated[str, typer.Option(help="Columns that do not become features.", metavar="A,B")]
_Categorical = Annotated[
    str,
    typer.Option(help="Columns whose numbers are names, such as postcodes.", metavar="A,B"),
]
_SecureAggregation = Annotated[
    str,
    typer.Option(
        "--secure-aggregation",
        help=(
            "Whether the server gets sums over cohorts of clients only (masked), or each "
            "client's summary (none). Default: masked if there are roster files and at "
            "least 3 clients."
        ),
        metavar="masked|none",
        show_default=False,
        rich_help_panel=DEPLOYMENT,
    ),
]


def add_to(app: typer.Typer) -> None:
    """Register the commands, as a group."""
    group = typer.Typer(
        cls=CommandGroup,
        no_args_is_help=True,
        help="Make a recipe by which columns of nodes become features and classes at all clients.",
        rich_markup_mode="rich",
        epilog=examples(_SUMMARISE, _FIT),
    )
    group.command("summarise", epilog=examples(_SUMMARISE))(_summarise)
    group.command("share", epilog=examples(_SHARE))(_share)
    group.command("fit", epilog=examples(_FIT, _FIT_TABLE, _FIT_DEPLOYED))(_fit)
    app.add_typer(group, name="features")


def _summarise(  # noqa: PLR0913 - a command's parameters are its options
    table: Annotated[Path, typer.Argument(help="A client's nodes.", metavar="TABLE")],
    *,
    key_column: _Key = "",
    label_column: _Label = "",
    columns: _Columns = "",
    drop: _Drop = "",
    categorical: _Categorical = "",
    unlabelled_values: UnlabelledValues = "",
    unlabelled: Annotated[
        bool,
        typer.Option("--unlabelled", help="These nodes have no labels."),
    ] = False,
    delimiter: Delimiter = "",
    decimal: Decimal = "",
    encoding: Encoding = "",
    out: Annotated[Path, typer.Option(help="New file for the summary (JSON).", metavar="FILE")],
    overwrite: Overwrite = False,
) -> None:
    """Summarise one client's nodes for a recipe, without any of its rows.

    The file holds, for each column of numbers, their count, sum and sum of squares, also of their
    logarithms; for each column of texts the count of each text; the names of labels. It holds no
    keys.
    """
    from retexo_fl.graph.recipes import read_summary
    from retexo_fl.graph.recipes.fitting import unlabelled_words
    from retexo_fl.graph.sources.tables import summarise_table
    from retexo_fl.graph.sources.tables.nodes import words_of
    from retexo_fl.graph.sources.text_form import TextForm

    check_new_file(out, overwrite=overwrite, read=read_summary, what="a summary")
    choice = replace(
        _choice(key_column, label_column, columns, drop, categorical),
        unlabelled=words_of(unlabelled_values),
        form=TextForm.of(delimiter=delimiter, decimal=decimal, encoding=encoding),
    )
    if unlabelled and (label_column or unlabelled_values):
        option = "label-column" if label_column else "unlabelled-values"
        raise ConfigurationError(
            f"{option}: cannot be given with unlabelled; expected one of the two"
        )
    summary = summarise_table(table, replace(choice, label="") if unlabelled else choice)
    write_whole(out, [summary.to_json().encode()], private=True)
    for sentence in unlabelled_words(summary.label_column, summary.label.classes):
        complain(sentence)
    for name, column in sorted(summary.columns.items()):
        tell(f"{name}: {_kind(column)}")
    tell(f"{format_counted(summary.rows, 'node')} in {out}")


def _share(
    summary: Annotated[
        Path,
        typer.Argument(help="Summary that `retexo features summarise` wrote.", metavar="SUMMARY"),
    ],
    *,
    config: Annotated[
        Path, typer.Option("--config", metavar="FILE", help="Settings of the client's agent.")
    ] = Path("/etc/retexo/agent.toml"),
    least_nodes: Annotated[
        int,
        typer.Option(
            help=(
                "Smallest group to report: nodes, numbers in a column, nodes with its most "
                "frequent text. A smaller summary is not sent. Under masks rarer texts are "
                "left out."
            ),
            min=1,
            metavar="N",
        ),
    ] = 10,
    wait_s: Annotated[
        float,
        typer.Option("--wait-s", help="How long to wait for the recipe.", min=1, metavar="SECS"),
    ] = 86_400.0,
    secure_aggregation: _SecureAggregation = "",
    out: Annotated[Path, typer.Option(help="New file for the recipe (TOML).", metavar="FILE")],
    overwrite: Overwrite = False,
) -> None:
    """Send a summary to the server of this client's SuperNode, and store the recipe.

    Runs in place of the agent, at its socket, until `retexo features fit --superlink` has made the
    recipe from all clients' summaries. Under masks the server gets sums over cohorts, the names of
    columns and classes, and texts that many nodes here have. Without masks it reads the whole file.
    A line says which.
    """
    from retexo_fl.agent.masked_sharing import MaskedShare, signer_if_possible
    from retexo_fl.agent.settings import read_settings
    from retexo_fl.agent.sharing import share_summary
    from retexo_fl.graph.recipes import read_recipe, read_summary

    check_new_file(out, overwrite=overwrite, read=read_recipe, what="a recipe")
    summed = read_summary(summary)
    settings = read_settings(config)
    signer, sentence = signer_if_possible(settings, _secure(secure_aggregation))
    summed.check_not_few(least_nodes, tells_all_texts=signer is None)
    masked = None
    if signer is not None:
        least = settings.least_clients
        masked = MaskedShare(summed, signer, least_clients=least, least_nodes=least_nodes)
    tell(sentence)
    for name, column in sorted(summed.columns.items()):
        tell(f"{name}: {_kind(column, rare=least_nodes, is_masked=masked is not None)}")
    recipe = share_summary(summed, Path(settings.socket), out, wait_s=wait_s, masked=masked)
    tell(f"{_sentence(recipe, None, out)}")


def _fit(  # noqa: PLR0913 - a command's parameters are its options
    inputs: Annotated[
        list[Path] | None,
        typer.Argument(
            help="Summaries of all clients (.json), or tables of nodes.", metavar="FILE..."
        ),
    ] = None,
    *,
    key_column: _Key = "",
    label_column: _Label = "",
    columns: _Columns = "",
    drop: _Drop = "",
    categorical: _Categorical = "",
    unlabelled_values: UnlabelledValues = "",
    delimiter: Delimiter = "",
    decimal: Decimal = "",
    encoding: Encoding = "",
    by_type: Annotated[
        bool,
        typer.Option(
            "--by-type",
            help=(
                "Each file is of one node type, which its name says; the recipe gets one part "
                "per type, in the order of the files. Columns are of the types that have them."
            ),
        ),
    ] = False,
    log: Annotated[
        str, typer.Option(help="Columns of numbers to replace by their logarithms.", metavar="A,B")
    ] = "",
    as_is: Annotated[
        str, typer.Option(help="Columns of numbers to leave unstandardised.", metavar="A,B")
    ] = "",
    min_count: Annotated[
        int,
        typer.Option(
            help=(
                "Nodes over all clients that a category needs for its own feature; rarer "
                "categories share one."
            ),
            min=1,
            metavar="N",
        ),
    ] = 10,
    missing: Annotated[
        str,
        typer.Option(help="Replacement for a missing number: mean, or constant:X.", metavar="SPEC"),
    ] = "mean",
    superlink: Annotated[
        str | None,
        typer.Option(
            help="Ask the clients of this SuperLink, which run `retexo features share`.",
            metavar="HOST:PORT",
            rich_help_panel=DEPLOYMENT,
        ),
    ] = None,
    root_certificates: RootCertificates = None,
    insecure: Insecure = False,
    clients: Annotated[
        int,
        typer.Option(
            help="How many clients there are.", min=0, metavar="N", rich_help_panel=DEPLOYMENT
        ),
    ] = 0,
    wait_s: Annotated[
        float,
        typer.Option(
            "--wait-s",
            help="How long to wait for clients.",
            min=1,
            metavar="SECS",
            rich_help_panel=DEPLOYMENT,
        ),
    ] = 3600.0,
    secure_aggregation: _SecureAggregation = "",
    out: Annotated[Path, typer.Option(help="New file for the recipe (TOML).", metavar="FILE")],
    overwrite: Overwrite = False,
) -> None:
    """Make the feature recipe that all clients share, from their summaries or from tables.

    The same summaries, in any order, give the same file, byte for byte. Numbers are standardised,
    texts become a feature for each category, text labels become classes.
    """
    from retexo_fl.graph.recipes import FitOptions, fit_recipe, merge_summaries, read_recipe
    from retexo_fl.graph.sources.tables.nodes import words_of
    from retexo_fl.graph.sources.text_form import TextForm

    check_new_file(out, overwrite=overwrite, read=read_recipe, what="a recipe")
    options = FitOptions(
        logarithms=_names(log),
        as_is=_names(as_is),
        least_count=min_count,
        missing=_constant(missing),
    )
    address = deployment_address(superlink, root_certificates, insecure=insecure)
    if address is not None and by_type:
        raise ConfigurationError(
            "by-type: cannot be given with superlink, by which clients share a summary of one "
            "table; expected each type's summaries as files"
        )
    if address is not None:
        _refuse_with_superlink(
            inputs=inputs,
            key_column=key_column,
            label_column=label_column,
            columns=columns,
            categorical=categorical,
            unlabelled_values=unlabelled_values,
            delimiter=delimiter,
            decimal=decimal,
            encoding=encoding,
        )
        from retexo_fl.federation.recipe_app import RecipeTask

        values: dict[str, Scalar] = {"clients": clients, "message-timeout-s": wait_s}
        if secure_aggregation:
            values["secure-aggregation"] = secure_aggregation
        task = RecipeTask(
            **asdict(options), out=str(out.absolute()), drop=_names(drop), overwrite=overwrite
        )
        _fit_deployed(task, address, values)
        return
    if secure_aggregation:
        raise ConfigurationError("secure-aggregation: expected only with --superlink HOST:PORT")
    if not inputs:
        raise ConfigurationError("FILE: missing; expected summaries or tables, or --superlink")
    choice = replace(
        _choice(key_column, label_column, columns, drop, categorical),
        unlabelled=words_of(unlabelled_values),
        form=TextForm.of(delimiter=delimiter, decimal=decimal, encoding=encoding),
    )
    if by_type:
        of_types = _summaries_of_types(inputs, choice, key_column, label_column)
        _fit_types(inputs, of_types, options, out)
        return
    summary = merge_summaries(_summaries(inputs, choice, key_column, label_column))
    recipe, told = fit_recipe(summary, options)
    write_whole(out, [recipe.to_toml().encode()])
    for sentence in told:
        complain(sentence)
    tell(_sentence(recipe, summary, out))


def _fit_types(
    inputs: list[Path], summaries: list[TableSummary], options: FitOptions, out: Path
) -> None:
    """Make a recipe of types, of which each has files of its name."""
    from retexo_fl.graph.recipes import fit_by_type, merge_summaries

    of_types: dict[str, list[TableSummary]] = {}
    for path, summary in zip(inputs, summaries, strict=True):
        of_types.setdefault(bare_name(path), []).append(summary)
    recipe, told = fit_by_type(
        {kind: merge_summaries(summaries) for kind, summaries in of_types.items()}, options
    )
    write_whole(out, [recipe.to_toml().encode()])
    for sentence in told:
        complain(sentence)
    widths = ", ".join(
        f"{kind} {format_counted(one.num_features, 'feature')}" for kind, one in recipe.types
    )
    tell(f'recipe {recipe.digest[:16]}: {widths}\nin {out}\npeers.toml: recipe = "{recipe.digest}"')


def _refuse_with_superlink(**given: object) -> None:
    for name, value in given.items():
        if value:
            option = "FILE" if name == "inputs" else name.replace("_", "-")
            raise ConfigurationError(
                f"{option}: cannot be given with superlink; expected it where clients run "
                "`retexo features summarise`"
            )


def _fit_deployed(
    task: RecipeTask,
    address: Address,
    values: Values,
) -> None:
    """Have a SuperLink make the recipe, which is written where it runs."""
    from retexo_fl.api.settling import masked_if_possible
    from retexo_fl.cli.deployed_run import check_superlink, run_apps
    from retexo_fl.graph.recipes import read_recipe
    from retexo_fl.progress import LiveTable
    from retexo_fl.simulation.flower_bundle import recipe_apps

    if not values["clients"]:
        raise ConfigurationError("clients: missing; expected how many the deployment has")
    config = make_config({**values, "engine": "deployment"})
    config, sentence = masked_if_possible(config, values, seen="summary")
    check_superlink(address)
    if sentence:
        complain(sentence)
    out = Path(task.out)
    before = file_stamp(out)
    table = LiveTable(dataset="", model="", engine=config.engine, quiet=True)
    try:
        run_apps(config, out, table, address=address, apps=recipe_apps(task))
    except KeyboardInterrupt:
        raise Interrupted(
            "interrupted; no recipe was made: clients' `retexo features share` go on, so run this "
            "again"
        ) from None
    if file_stamp(out) != before:
        tell(_sentence(read_recipe(out), None, out))
    else:
        tell(f"recipe in {out} where the SuperLink runs")


def _secure(chosen: str) -> str:
    if chosen not in {"", "masked", "none"}:
        raise ConfigurationError(
            f"secure-aggregation: got {chosen[:60]!r}; expected masked or none"
        )
    return chosen


def _kind(column: ColumnSummary, *, rare: int = 0, is_masked: bool = False) -> str:
    """Return what the summary says of a column, and how many of its texts few nodes have."""
    if column.too_many_texts:
        return "more texts than categories would be, none of them in the summary"
    if column.texts and is_masked:
        few = sum(count < rare for count in column.texts.values())
        named = format_counted(len(column.texts) - few, "text")
        return f"{named} named; {format_count(few)} that fewer than {rare} nodes have are not"
    if column.texts:
        told = f"{format_counted(len(column.texts), 'text')}, each with how often it is there"
        few = sum(count < rare for count in column.texts.values())
        return f"{told}; fewer than {rare} nodes have {format_count(few)} of them" if few else told
    if column.numbers.count:
        what = "date" if column.are_dates else "number"
        return f"sums of {format_counted(column.numbers.count, what)}"
    return "no values"


def _summaries(
    inputs: list[Path], choice: ColumnChoice, key_column: str, label_column: str
) -> list[TableSummary]:
    from retexo_fl.graph.recipes import read_summary
    from retexo_fl.graph.sources.tables import summarise_table

    _check_once(inputs)
    summaries = []
    for path in inputs:
        if not _is_summary(path):
            summaries.append(summarise_table(path, choice))
            continue
        summary = read_summary(path)
        for option, given, told in (
            ("key-column", key_column, summary.key_column),
            ("label-column", label_column, summary.label_column),
        ):
            if given not in ("", told):
                raise ConfigurationError(
                    f"{option}: got {given[:60]!r}; expected {told[:60]!r}, as in {path}"
                )
        if choice.columns or choice.categorical:
            option = "columns" if choice.columns else "categorical"
            raise ConfigurationError(
                f"{option}: cannot be given with {path}, which is a summary already; expected it "
                "with `retexo features summarise`"
            )
        summaries.append(summary.without(choice.drop))
    return summaries


def _check_once(inputs: list[Path]) -> None:
    seen: dict[Path, Path] = {}
    for path in inputs:
        if seen.setdefault(path.resolve(), path) is not path:
            raise ConfigurationError(f"{path}: was given twice; expected each client's once")


def _is_summary(path: Path) -> bool:
    return path.suffix.lower() == ".json"


def _summaries_of_types(
    inputs: list[Path], choice: ColumnChoice, key_column: str, label_column: str
) -> list[TableSummary]:
    """Return a summary of each file; chosen columns are those of the types that have them."""
    from retexo_fl.graph.sources.tables import choices_by_table, summarise_table

    _check_once(inputs)
    tables = [path for path in inputs if not _is_summary(path)]
    if tables and len(tables) < len(inputs):
        raise ConfigurationError(
            f"{tables[0]}: is a table, and others are summaries; expected files of one kind with "
            "by-type"
        )
    if tables:
        choices = choices_by_table(tables, choice)
        summaries = [summarise_table(path, own) for path, own in zip(tables, choices, strict=True)]
    else:
        summaries = _summaries(inputs, replace(choice, drop=()), "", "")
        _check_somewhere("drop", choice.drop, [{*summary.columns} for summary in summaries])
        summaries = [
            summary.without([name for name in choice.drop if name in summary.columns])
            for summary in summaries
        ]
    for option, given, told in (
        ("key-column", key_column, [summary.key_column for summary in summaries]),
        ("label-column", label_column, [summary.label_column for summary in summaries]),
    ):
        _check_somewhere(option, [given] if given else [], [{*filter(None, told)}])
    return summaries


def _check_somewhere(option: str, names: Iterable[str], there: Sequence[set[str]]) -> None:
    known: set[str] = set().union(*there)
    for name in names:
        if name not in known:
            raise ConfigurationError(
                f"{option}: {name[:60]!r} is a column of no type; there is: "
                f"{', '.join(sorted(known))[:400] or 'none'}"
            )


def _choice(key: str, label: str, columns: str, drop: str, categorical: str) -> ColumnChoice:
    from retexo_fl.graph.sources.tables import ColumnChoice

    choice = ColumnChoice(
        columns=_names(columns), drop=_names(drop), categorical=_names(categorical)
    )
    return replace(choice, key=key or choice.key, label=label or choice.label)


def _names(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(filter(None, (name.strip() for name in text.split(",")))))


def _constant(missing: str) -> float | None:
    if missing == "mean":
        return None
    kind, _, number = missing.partition(":")
    try:
        value = float(number)
    except ValueError:
        value = float("nan")
    if kind != "constant" or not abs(value) < float("inf"):
        raise ConfigurationError(
            f"missing: got {missing[:60]!r}; expected mean, or constant:X with a finite number X"
        )
    return value


def _sentence(recipe: FeatureRecipe, summary: TableSummary | None, out: Path) -> str:
    of_nodes = "" if summary is None else f", of {format_counted(summary.rows, 'node')}"
    classes = ""
    if recipe.classes:
        named = ", ".join(recipe.classes[:12]) + (", ..." if len(recipe.classes) > 12 else "")
        classes = f"; {format_count(len(recipe.classes))} classes: {named}"
    dates = f", {format_counted(len(recipe.dates), 'column')} of dates" if recipe.dates else ""
    return (
        f"recipe {recipe.digest[:16]}: {format_counted(recipe.num_features, 'feature')} of "
        f"{format_counted(len(recipe.numbers), 'column')} of numbers{dates} and "
        f"{format_counted(len(recipe.categories), 'column')} of categories"
        f"{of_nodes}{classes}\nin {out}\n"
        f"peers.toml: {_peers_keys(recipe)}"
    )


def _peers_keys(recipe: FeatureRecipe) -> str:
    """Return what a peers file says of the recipe."""
    classes = f"classes = {len(recipe.classes)}, " if recipe.classes else ""
    return f'{classes}features = {recipe.num_features}, recipe = "{recipe.digest}"'
