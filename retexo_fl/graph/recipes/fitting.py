"""From the summary of all tables to a recipe."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from retexo_fl.errors import ConfigurationError
from retexo_fl.graph.labels import disjoint_classes
from retexo_fl.graph.recipes.recipe import (
    SINCE,
    CategoryColumn,
    DateColumn,
    FeatureRecipe,
    NumberColumn,
)
from retexo_fl.graph.recipes.summary import (
    MOST_TEXTS,
    ColumnSummary,
    LabelSummary,
    TableSummary,
)
from retexo_fl.units import counted

#: Names that no class has, in languages of Europe.
_UNKNOWN_WORDS: Final = frozenset(
    (
        *("", "?", "??", "???", "-", "--", "---", ".", "_", "n/a", "na", "n.a.", "n. a.", "#n/a"),
        *("none", "nan", "null", "nil", "nothing", "empty", "blank", "missing", "undefined"),
        *("unknown", "unk", "unlabelled", "unlabeled", "no label", "not labelled", "not labeled"),
        *("unclassified", "unassigned", "undetermined", "unspecified", "not available"),
        *("not known", "not applicable", "not specified", "tbd", "k.a.", "k. a.", "unbekannt"),
        *("keine angabe", "ohne angabe", "inconnu", "inconnue", "desconocido", "sconosciuto"),
        *("desconhecido", "onbekend", "ukjent", "okänd", "ukendt", "nieznany", "neznámé"),
    )
)
#: Categories of fewer nodes are merged: training sees too few of them to learn anything.
RARE: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class FitOptions:
    """What is chosen when a recipe is made.

    Attributes:
        logarithms: Columns of numbers that are taken as logarithms.
        as_is: Columns of numbers that are not standardised.
        least_count: Nodes that a category needs for a feature of its own.
        missing: Number that replaces a missing one; None for the mean of the column.
    """

    logarithms: tuple[str, ...] = ()
    as_is: tuple[str, ...] = ()
    least_count: int = RARE
    missing: float | None = None


def fit_by_type(
    summaries: Mapping[str, TableSummary], options: FitOptions | None = None
) -> tuple[FeatureRecipe, tuple[str, ...]]:
    """Make a recipe with a part for each type of nodes.

    Args:
        summaries: By type, of all tables of the type together, in the order of the features.
        options: What is chosen, of columns of any type; None for the defaults.

    Returns:
        The recipe, and a sentence for each column that is left out or cut short.

    Raises:
        ConfigurationError: An option names a column that no type has, or one that is not of
            numbers, or two types have classes of which none is of both.
    """
    options = options or FitOptions()
    there = {name for summary in summaries.values() for name in summary.columns}
    for option, names in (("log", options.logarithms), ("as-is", options.as_is)):
        if unknown := [name for name in names if name not in there]:
            raise ConfigurationError(
                f"{option}: {unknown[0][:60]!r} is a column of no type; expected one of "
                f"{', '.join(sorted(there))[:400]}"
            )
    label = LabelSummary()
    classes: dict[str, tuple[str, ...]] = {}
    types, told = [], []
    for kind, summary in summaries.items():
        own = replace(
            options,
            logarithms=tuple(name for name in options.logarithms if name in summary.columns),
            as_is=tuple(name for name in options.as_is if name in summary.columns),
        )
        made, sentences = fit_recipe(summary, own, may_lack_columns=True)
        # Of several types the classes are those of all of them.
        label += summary.label
        if made.classes:
            classes[kind] = made.classes
        types.append((kind, made.with_classes(())))
        told += [f"{kind}: {sentence}" for sentence in sentences]
    if different := disjoint_classes(classes):
        raise ConfigurationError(
            f"label-column: {different}; expected classes that both have, or nodes of one type "
            "summarised with labels"
        )
    return FeatureRecipe(classes=label.classes, types=tuple(types)), tuple(told)


def fit_recipe(
    summary: TableSummary, options: FitOptions | None = None, *, may_lack_columns: bool = False
) -> tuple[FeatureRecipe, tuple[str, ...]]:
    """Make a recipe of all clients' columns.

    Columns of numbers are standardised, with an indicator where one is missing; columns of texts
    become one feature for each category. A column whose cells are all alike, or are more different
    texts than categories would be, is left out.

    Args:
        summary: Of all tables together.
        options: What is chosen; None for the defaults.
        may_lack_columns: Of a type of nodes, which may be without features.

    Returns:
        The recipe, and a sentence for each column that is left out or cut short.

    Raises:
        ConfigurationError: An option names a column that is not there or not of numbers, no column
            is left, or the labels are texts of one class.
    """
    options = FitOptions() if options is None else options
    _check_options(summary, options)
    told: list[str] = []
    numbers, dates, categories = [], [], []
    for name, column in sorted(summary.columns.items()):
        if column.has_texts:
            categories += _category(name, column, options, told)
        elif column.are_dates:
            dates += _date(name, column, options, told)
        else:
            numbers += _number(name, column, options, told)
    if not (numbers or dates or categories or may_lack_columns):
        raise ConfigurationError(
            f"{summary.source}: no column becomes a feature"
            + "".join(f"; {sentence}" for sentence in told[:5])
            + "; expected at least one"
        )
    classes = summary.label.classes
    told += unlabelled_words(summary.label_column, classes)
    if len(classes) == 1:
        raise ConfigurationError(
            f"{summary.source}: {summary.label_column}: every label is {classes[0][:60]!r}; "
            "expected at least two classes"
        )
    recipe = FeatureRecipe(
        key_column=summary.key_column,
        label_column=summary.label_column,
        classes=classes,
        numbers=tuple(numbers),
        dates=tuple(dates),
        categories=tuple(categories),
    )
    return recipe, tuple(told)


def unlabelled_words(column: str, classes: Sequence[str]) -> list[str]:
    """Return a sentence for each class whose name says that nothing is known of a node."""
    return [
        f"{column}: {name!r} is a class of its own; --unlabelled-values {shlex.quote(name)} leaves "
        "its nodes unlabelled"
        for name in classes
        if name.strip().strip("()<>[]").casefold() in _UNKNOWN_WORDS
    ]


def _check_options(summary: TableSummary, options: FitOptions) -> None:
    for option, names in (("log", options.logarithms), ("as-is", options.as_is)):
        for name in names:
            column = summary.columns.get(name)
            are_dates = column is not None and column.are_dates and option == "log"
            if column is None or column.has_texts or are_dates:
                told = "a column of dates" if are_dates else "a column of texts"
                told = "no column" if column is None else told
                numbers = [n for n, each in sorted(summary.columns.items()) if not each.has_texts]
                there = ", ".join(map(repr, numbers[:12])) or "none"
                raise ConfigurationError(
                    f"{option}: {name[:60]!r} is {told} of {summary.source}; expected a column of "
                    f"numbers; there is: {there}"
                )


def _number(
    name: str, column: ColumnSummary, options: FitOptions, told: list[str]
) -> list[NumberColumn]:
    takes_logarithm = name in options.logarithms
    moments = column.logarithms if takes_logarithm else column.numbers
    missing = column.empty + sum(column.words.values())
    if not moments.count:
        told.append(f"{name}: left out, as no row has a value")
        return []
    deviation = moments.deviation
    if deviation == 0 and not missing:
        told.append(f"{name}: left out, as all rows have the same number")
        return []
    is_plain = name in options.as_is
    return [
        NumberColumn(
            column=name,
            logarithm=takes_logarithm,
            mean=0.0 if is_plain else moments.mean,
            deviation=1.0 if is_plain or deviation == 0 else deviation,
            missing=_filled(column.numbers.mean, options) if is_plain else options.missing,
            indicator=missing > 0,
        )
    ]


def _date(
    name: str, column: ColumnSummary, options: FitOptions, told: list[str]
) -> list[DateColumn]:
    missing = column.empty + sum(column.words.values())
    deviation = column.numbers.deviation
    if deviation == 0 and not missing:
        told.append(f"{name}: left out, as all rows have the same date")
        return []
    is_plain = name in options.as_is
    told.append(f"{name}: dates, taken as days since {SINCE}, month and weekday")
    return [
        DateColumn(
            column=name,
            mean=0.0 if is_plain else column.numbers.mean,
            deviation=1.0 if is_plain or deviation == 0 else deviation,
            indicator=missing > 0,
        )
    ]


def _filled(mean: float, options: FitOptions) -> float:
    """Return what replaces a missing number in a column whose zero is not its mean."""
    return mean if options.missing is None else options.missing


def _category(
    name: str, column: ColumnSummary, options: FitOptions, told: list[str]
) -> list[CategoryColumn]:
    if column.too_many_texts:
        told.append(
            f"{name}: left out, as it has more than {MOST_TEXTS:,} different texts, or long ones, "
            "such as names or account numbers"
        )
        return []
    # In a column of texts NA is a text: a country, for one.
    counts = Counter(column.texts) + Counter(column.words)
    if len(counts) == 1 and not column.empty and not column.unnamed:
        told.append(f"{name}: left out, as all rows have the same text")
        return []
    values = sorted(text for text, count in counts.items() if count >= options.least_count)
    rare = len(counts) - len(values)
    if not values and not column.empty:
        none = (
            "no text that a client names"
            if column.unnamed
            else f"none of its {counted(rare, 'text')}"
        )
        told.append(f"{name}: left out, as {none} has {options.least_count} rows (--min-count)")
        return []
    if rare:
        told.append(
            f"{name}: {counted(rare, 'text')} of fewer than "
            f"{options.least_count} rows count as other"
        )
    if column.unnamed:
        told.append(
            f"{name}: {counted(column.unnamed, 'row')} with texts that no client names, since few "
            "of its nodes have them, count as other (--least-nodes of `retexo features share`)"
        )
    return [CategoryColumn(column=name, values=tuple(values), indicator=column.empty > 0)]
