"""What a configuration key is: its help, its values, and how both are written down once."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import Any, Final, Required, TypeAlias, TypedDict, Unpack

from retexo_fl.config.value_forms import ValueForm
from retexo_fl.dates import MOMENT, THREE, are_moments, moment_text
from retexo_fl.plugins import is_plugin

Scalar = bool | int | float | str


class Lean(Enum):
    """Which values of a key go with lean training, the default; see :attr:`KeyInfo.lean`."""

    #: All: it says which graph, how large, where, for how long, what crosses in how many bits, what
    #: is reported or hidden, or something that only matters beside a key that leaves lean training.
    ANY = "any"
    #: Only the value of lean training itself: the key says how one trains.
    OWN = "own"


LeanValues: TypeAlias = Lean | tuple[Scalar, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyInfo:
    """All that is known of one key beside its default.

    Attributes:
        help: What the key decides, one sentence.
        check: Says whether a value of the right type is allowed.
        expected: What is allowed, to end the sentence of an error.
        brief: The same for a list of options; empty where any text is allowed.
        panel: Heading in a list of options, of this key and those that follow; empty: as before.
        metavar: Name of its value in such a list; empty: that of its type.
        lean: Values that are trained leanly; with another one a run that names no profile has the
            paper's schedule (:func:`~retexo_fl.config.profiles.default_profile`). A tuple says with
            which, beside its own, lean training was found to be as accurate.
        may_change: Whether attempts of one job may differ in it: it says where a run takes place,
            how long it waits for whom, or when it ends.
        values: All that there are, where there are few, but for extensions.
        extensible: Whether a value may be ``module:attribute``.
        read: Converts a value of another type; None for the usual way.
        several: It may be given several times on a command line, or as a list.
    """

    help: str
    check: Callable[[Any], bool]
    expected: str
    brief: str
    panel: str = ""
    metavar: str = ""
    lean: LeanValues
    may_change: bool = False
    values: tuple[Scalar, ...] = ()
    extensible: bool = False
    read: Callable[[object], object] | None = None
    several: bool = False


class More(TypedDict, total=False):
    """What a declaration may add; see :class:`KeyInfo`."""

    panel: str
    metavar: str
    lean: Required[LeanValues]
    may_change: bool
    values: tuple[Scalar, ...]
    extensible: bool
    read: Callable[[object], object]
    several: bool


_MOST_WHOLE: Final = 2**31 - 1


def key(
    default: Scalar,
    help_text: str,
    check: Callable[[Any], bool],
    *,
    expected: str,
    brief: str,
    **more: Unpack[More],
) -> Any:
    """Declare a field of :class:`~retexo_fl.config.RunConfig`."""
    info = KeyInfo(help=help_text, check=check, expected=expected, brief=brief, **more)
    return field(default=default, metadata={"key": info})


def text(default: str, help_text: str, **more: Unpack[More]) -> Any:
    """Declare a field of any printable text."""
    # A path with a line break, a NUL or undecodable bytes has no place in a TOML file or a message.
    check = str.isprintable
    return key(default, help_text, check, expected="printable text", brief="", **more)


def texts(help_text: str, **more: Unpack[More]) -> Any:
    """Declare a field of printable texts with commas between them; it may be given as a list."""
    more["several"], more["read"] = True, joined_texts
    return text("", help_text, **more)


def joined_texts(value: object) -> object:
    """Return the text of a list or tuple of texts or paths; anything else as it is."""
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else value


def text_of_number(value: object) -> object:
    """Return the text of a whole number, which names a column; anything else as it is."""
    return str(value) if type(value) is int else value


def text_of_weights(value: object) -> object:
    """Return the text of numbers, in a list or by name; anything else as it is."""
    if isinstance(value, Mapping):
        value = [f"{name}:{number}" for name, number in value.items()]
    return joined_texts(value)


def switch(help_text: str, **more: Unpack[More]) -> Any:
    """Declare a field that is false unless it is set."""
    return key(False, help_text, lambda value: True, expected="true or false", brief="", **more)


def whole(
    default: int, help_text: str, *, least: int, most: int = _MOST_WHOLE, **more: Unpack[More]
) -> Any:
    """Declare a field of whole numbers."""
    return key(
        default,
        help_text,
        lambda value: least <= value <= most,
        expected=f"a whole number from {least} to {most}",
        brief=f"at least {least}" if most == _MOST_WHOLE else f"{least} to {most}",
        **more,
    )


def choice(default: int, help_text: str, *choices: int, **more: Unpack[More]) -> Any:
    """Declare a field of some whole numbers."""
    names = ", ".join(map(str, choices))
    check = choices.__contains__
    more["values"] = choices
    return key(default, help_text, check, expected=f"one of {names}", brief=names, **more)


def number(
    default: float,
    help_text: str,
    brief: str,
    check: Callable[[float], bool],
    **more: Unpack[More],
) -> Any:
    """Declare a field of real numbers."""
    return key(default, help_text, check, expected=f"a number {brief}", brief=brief, **more)


def one_of(
    default: str, help_text: str, *choices: str, plugin: bool = False, **more: Unpack[More]
) -> Any:
    """Declare a field of names, and of extensions where ``plugin`` says so."""
    names = ", ".join(choices) + (", or module:attribute" if plugin else "")
    more["values"], more["extensible"] = choices, plugin
    return key(
        default,
        help_text,
        lambda value: value in choices or (plugin and is_plugin(value)),
        expected=f"one of {names}" if len(choices) > 1 or plugin else names,
        brief=names,
        **more,
    )


def formed(default: str, help_text: str, form: ValueForm, **more: Unpack[More]) -> Any:
    """Declare a field of texts of one form."""
    more["extensible"] = form.extensible
    return key(default, help_text, form.allows, expected=form.expected, brief=form.brief, **more)


def moment(help_text: str, **more: Unpack[More]) -> Any:
    """Declare a field of a point in time, three, or none; it may be given as a date or a number."""
    more["read"] = moment_text
    brief = "a number, or a date, or three"
    return key("", help_text, are_moments, expected=f"{MOMENT}; or {THREE}", brief=brief, **more)


_SWITCH: Final = MappingProxyType({"true": True, "false": False})


def value_of(text: str, wanted: type[Scalar]) -> Scalar:
    """Read a value as a command line writes it.

    Raises:
        ValueError: The text is no such value.
    """
    if wanted is bool:
        if text not in _SWITCH:
            raise ValueError(text)
        return _SWITCH[text]
    return wanted(text)


def as_float(value: object, wanted: type) -> object:
    """Return a whole number as a float, where the key wants one."""
    if wanted is not float or not isinstance(value, int) or isinstance(value, bool):
        return value
    try:
        return float(value)
    except OverflowError:
        return math.inf
