"""A feature recipe: from the columns of a table of nodes to features and classes; a TOML file."""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import tomli_w

from retexo_fl.errors import ConfigurationError
from retexo_fl.files import parse_toml, read_toml
from retexo_fl.graph.labels import CLASSES, LabelKind
from retexo_fl.graph.recipes.checked_values import check_keys, fail, switch_of, text_of

#: The name that the file has in and beside parts, and in a run.
RECIPE_NAME: Final = "recipe.toml"
#: Raised when the meaning of a recipe changes: a reader knows exactly one.
RECIPE_VERSION: Final = 1
_HEADING: Final = (
    "# How columns of nodes become features and classes; the same file at every client.\n"
)
_NUMERAL: Final = re.compile(r"0|[1-9][0-9]{0,17}", re.ASCII)
_DIGITS: Final = re.compile(r"[0-9a-f]{64}")
_OF_COLUMNS: Final = ("key-column", "label-column")
_OF_FEATURES: Final = ("numbers", "dates", "categories")
_OPTIONAL: Final = frozenset(("digest", "classes", "types", *_OF_FEATURES))
#: Of one type; labels have one of them.
_OF_TYPE: Final = frozenset((*_OF_COLUMNS, *_OF_FEATURES))
_MOST_TYPES: Final = 100
_KEYS: Final = frozenset(("version", *_OPTIONAL))
_NUMBER_KEYS: Final = frozenset(
    ("column", "logarithm", "mean", "deviation", "missing", "indicator")
)
_DATE_KEYS: Final = frozenset(("column", "since", "mean", "deviation", "indicator"))
#: Where days are counted from.
SINCE: Final = "1970-01-01"
MONTHS: Final = 12
WEEKDAYS: Final = 7
_CATEGORY_KEYS: Final = frozenset(("column", "values", "indicator"))
_MOST_TEXTS: Final = 100_000
_MOST: Final = sys.float_info.max


@dataclass(frozen=True, slots=True, kw_only=True)
class NumberColumn:
    """A column of numbers: one feature, and one more that says where a number is missing.

    Attributes:
        column: Its name.
        logarithm: ``sign(v) log(1 + |v|)`` replaces a number v.
        mean: Is subtracted, after the logarithm.
        deviation: Above 0; what is left is divided by it.
        missing: Number that replaces a missing one; None for the mean.
        indicator: Whether the second feature is there: 1 where the number is missing, else 0.
    """

    column: str
    logarithm: bool
    mean: float
    deviation: float
    missing: float | None
    indicator: bool

    @property
    def width(self) -> int:
        """How many features it becomes."""
        return 1 + self.indicator

    def to_values(self) -> dict[str, Any]:
        """Return its table in the file."""
        values = {
            "column": self.column,
            "logarithm": self.logarithm,
            "mean": self.mean,
            "deviation": self.deviation,
            "indicator": self.indicator,
        }
        return values if self.missing is None else {**values, "missing": self.missing}


@dataclass(frozen=True, slots=True, kw_only=True)
class DateColumn:
    """A column of dates: days since :data:`SINCE`, a feature for each month and each weekday.

    Attributes:
        column: Its name.
        mean: Of the days; is subtracted.
        deviation: Above 0; what is left is divided by it.
        indicator: Whether the last feature is there: 1 where the date is missing, else 0.
    """

    column: str
    mean: float
    deviation: float
    indicator: bool

    @property
    def width(self) -> int:
        """How many features it becomes."""
        return 1 + MONTHS + WEEKDAYS + self.indicator

    def to_values(self) -> dict[str, Any]:
        """Return its table in the file."""
        return {
            "column": self.column,
            "since": SINCE,
            "mean": self.mean,
            "deviation": self.deviation,
            "indicator": self.indicator,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class CategoryColumn:
    """A column of categories: a feature for each, one for all others, perhaps one for none.

    Attributes:
        column: Its name.
        values: Categories with a feature of their own, in the order of the features.
        indicator: Whether the last feature is there: 1 where the category is missing, else 0.
    """

    column: str
    values: tuple[str, ...]
    indicator: bool

    @property
    def width(self) -> int:
        """How many features it becomes."""
        return len(self.values) + 1 + self.indicator

    def to_values(self) -> dict[str, Any]:
        """Return its table in the file."""
        return {"column": self.column, "values": list(self.values), "indicator": self.indicator}


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureRecipe:
    """How the columns of a table become features and classes.

    One without columns names classes alone, and leaves features as they are. One of a graph with
    types of nodes has a recipe for each type, and no columns of its own.

    Attributes:
        key_column: Name of the column of keys; empty without columns.
        label_column: Name of the column of labels; empty without columns, and of a type without
            labels.
        classes: Names of the classes by class, where labels are texts, or numbers that do not count
            from 0; empty where they do.
        numbers: Columns of numbers, in the order of their features.
        dates: Columns of dates, whose features come after.
        categories: Columns of categories, whose features come last.
        types: Names of types, each with the recipe of its table, which names no classes, in the
            order of their features. One without columns is of a type without features.
    """

    classes: tuple[str, ...]
    key_column: str = ""
    label_column: str = ""
    numbers: tuple[NumberColumn, ...] = ()
    dates: tuple[DateColumn, ...] = ()
    categories: tuple[CategoryColumn, ...] = ()
    types: tuple[tuple[str, FeatureRecipe], ...] = ()

    @property
    def in_order(self) -> tuple[NumberColumn | DateColumn | CategoryColumn, ...]:
        """All columns, in the order of their features."""
        return (*self.numbers, *self.dates, *self.categories)

    @property
    def num_features(self) -> int:
        """F."""
        return len(self.feature_names)

    @property
    def feature_names(self) -> tuple[str, ...]:
        """[F] of which column each feature is made; with types behind the type's name."""
        if self.types:
            # A type without features has one column, which says what it is.
            return tuple(
                f"{kind}/{name}" for kind, one in self.types for name in one.feature_names or ("",)
            )
        return tuple(column.column for column in self.in_order for _ in range(column.width))

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns that become features, as in :attr:`feature_names`."""
        return tuple(dict.fromkeys(self.feature_names))

    @property
    def digest(self) -> str:
        """64 hex digits that name it: the SHA-256 of its content, without comments and layout."""
        text = json.dumps(self._values(), sort_keys=True, separators=(",", ":"), ensure_ascii=True)
        return hashlib.sha256(text.encode("ascii")).hexdigest()

    @property
    def has_numbered_classes(self) -> bool:
        """Whether its classes are whole numbers."""
        return all(_NUMERAL.fullmatch(name) for name in self.classes)

    def with_classes(self, classes: tuple[str, ...]) -> FeatureRecipe:
        """Return the same recipe with names of classes."""
        return replace(self, classes=classes)

    def check_labels(self, labels: LabelKind) -> None:
        """Check that what it makes of labels can be of a kind.

        Raises:
            ConfigurationError: Its labels are texts, which are names of classes, and the task is
                another.
        """
        if not self.has_numbered_classes and not labels.are_classes:
            raise ConfigurationError(
                f"task: {labels.name} does not go with {named_recipe(self.digest)}, whose labels "
                f"in {self.label_column[:60]!r} are texts; expected {CLASSES.name}"
            )

    def to_toml(self) -> str:
        """Return the text of the file; equal recipes are equal texts."""
        values = self._values()
        first = {"version": values.pop("version"), "digest": self.digest}
        return _HEADING + tomli_w.dumps({**first, **values})

    def _values(self) -> dict[str, Any]:
        values: dict[str, Any] = {"version": RECIPE_VERSION}
        if self.in_order:
            values |= {"key-column": self.key_column, "label-column": self.label_column}
        if self.classes:
            values["classes"] = list(self.classes)
        values |= self._columns()
        if self.types:
            values["types"] = {kind: one._of_type() for kind, one in self.types}
        return values

    def _of_type(self) -> dict[str, Any]:
        names = {"key-column": self.key_column, "label-column": self.label_column}
        return {**{key: name for key, name in names.items() if name}, **self._columns()}

    def _columns(self) -> dict[str, Any]:
        values = {}
        for name, columns in (
            ("numbers", self.numbers),
            ("dates", self.dates),
            ("categories", self.categories),
        ):
            if columns:
                values[name] = [column.to_values() for column in columns]
        return values


def read_recipe(path: Path) -> FeatureRecipe:
    """Read a recipe.

    Its key ``digest`` may be absent: whoever changes a recipe by hand leaves it out.

    Raises:
        ConfigurationError: It cannot be read, is of another version, a key is missing, unknown or
            not as documented, or its digest is not that of its content.
    """
    return _checked_recipe(read_toml(path), path)


def parse_recipe(content: bytes, path: Path) -> FeatureRecipe:
    """Return the recipe of a file's content, as :func:`read_recipe`; errors name ``path``.

    Raises:
        ConfigurationError: As there.
    """
    return _checked_recipe(parse_toml(content, path), path)


def _checked_recipe(values: Mapping[str, Any], path: Path) -> FeatureRecipe:
    if "version" in values and values["version"] != RECIPE_VERSION:
        fail(path, "version", values["version"], f"{RECIPE_VERSION}, which this version reads")
    has_types = "types" in values
    if has_types and (wrong := sorted({*_OF_FEATURES, *_OF_COLUMNS} & values.keys())):
        fail(path, wrong[0], values[wrong[0]], "it in each of the types alone")
    names_alone = bool(values.get("classes")) and not {*_OF_FEATURES} & values.keys()
    named = () if names_alone or has_types else _OF_COLUMNS
    check_keys(path, "recipe", values, _KEYS.union(named), optional=_OPTIONAL)
    recipe = replace(
        _columns(path, values, named),
        classes=_texts(path, "classes", values.get("classes", [])),
        types=_types(path, values["types"]) if has_types else (),
    )
    if not recipe.columns and not recipe.classes:
        fail(path, ", ".join(_OF_FEATURES), [], "at least one column that becomes features")
    if len(recipe.classes) == 1:
        fail(path, "classes", list(recipe.classes), "at least two, or none")
    told = values.get("digest")
    if told is not None and told != recipe.digest:
        fail(
            path,
            "digest",
            told,
            f"{recipe.digest[:16]}..., that of the file's content; leave the line out if it was "
            "changed on purpose",
        )
    return recipe


def _columns(path: Path, values: Mapping[str, Any], named: Sequence[str]) -> FeatureRecipe:
    """Return a recipe of the columns alone; ``named`` are the keys that name others."""
    key, label = (text_of(path, one, values[one]) if one in named else "" for one in _OF_COLUMNS)
    recipe = FeatureRecipe(
        key_column=key,
        label_column=label,
        classes=(),
        numbers=tuple(_number(path, t) for t in _tables(path, "numbers", values)),
        dates=tuple(_date(path, t) for t in _tables(path, "dates", values)),
        categories=tuple(_category(path, t) for t in _tables(path, "categories", values)),
    )
    names = [*(values[key] for key in named), *(column.column for column in recipe.in_order)]
    twice = [name for at, name in enumerate(names) if name in names[:at]]
    if twice:
        fail(path, "column", twice[0], "each column once")
    return recipe


def _types(path: Path, values: object) -> tuple[tuple[str, FeatureRecipe], ...]:
    if not isinstance(values, dict) or not 0 < len(values) <= _MOST_TYPES:
        fail(path, "types", values, f"1 to {_MOST_TYPES} tables [types.NAME]")
    found = []
    for kind, of_type in values.items():
        if not isinstance(of_type, dict):
            fail(path, f"types.{kind}", of_type, "a table")
        check_keys(path, f"types.{kind}", of_type, _OF_TYPE, optional=_OF_TYPE)
        named = [key for key in _OF_COLUMNS if key in of_type]
        if {*_OF_FEATURES} & of_type.keys() and "key-column" not in named:
            fail(path, f"types.{kind}", of_type, "a key-column")
        found.append((kind, _columns(path, of_type, named)))
    return tuple(found)


def named_recipe(digest: str) -> str:
    """Return how errors name a recipe by its digest."""
    return f"recipe {digest[:16]}" if digest else "no recipe"


def _number(path: Path, values: Mapping[str, Any]) -> NumberColumn:
    check_keys(path, "numbers", values, _NUMBER_KEYS, optional=frozenset(("missing",)))
    deviation = _float(path, "deviation", values["deviation"])
    if deviation <= 0:
        fail(path, "deviation", deviation, "a number above 0")
    missing = values.get("missing")
    return NumberColumn(
        column=text_of(path, "column", values["column"]),
        logarithm=switch_of(path, "logarithm", values["logarithm"]),
        mean=_float(path, "mean", values["mean"]),
        deviation=deviation,
        missing=None if missing is None else _float(path, "missing", missing),
        indicator=switch_of(path, "indicator", values["indicator"]),
    )


def _date(path: Path, values: Mapping[str, Any]) -> DateColumn:
    check_keys(path, "dates", values, _DATE_KEYS)
    if values["since"] != SINCE:
        fail(path, "since", values["since"], SINCE)
    deviation = _float(path, "deviation", values["deviation"])
    if deviation <= 0:
        fail(path, "deviation", deviation, "a number above 0")
    return DateColumn(
        column=text_of(path, "column", values["column"]),
        mean=_float(path, "mean", values["mean"]),
        deviation=deviation,
        indicator=switch_of(path, "indicator", values["indicator"]),
    )


def _category(path: Path, values: Mapping[str, Any]) -> CategoryColumn:
    check_keys(path, "categories", values, _CATEGORY_KEYS)
    return CategoryColumn(
        column=text_of(path, "column", values["column"]),
        values=_texts(path, "values", values["values"]),
        indicator=switch_of(path, "indicator", values["indicator"]),
    )


def _tables(path: Path, key: str, values: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    tables = values.get(key, [])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        fail(path, key, tables, f"tables [[{key}]]")
    return tables


def _texts(path: Path, key: str, value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or len(value) > _MOST_TEXTS:
        fail(path, key, value, f"a list of at most {_MOST_TEXTS} texts")
    texts = tuple(text_of(path, key, text) for text in value)
    if len(set(texts)) < len(texts):
        fail(path, key, value, "each text once")
    return texts


def _float(path: Path, key: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= _MOST:
        # Beside nan and inf, whole numbers that no float holds.
        fail(path, key, value, "a finite number")
    return float(value)
