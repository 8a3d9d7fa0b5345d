"""Errors in the words of their reader: in Python an option is a keyword, and a command a call."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from retexo_fl.config import key_infos
from retexo_fl.errors import RetexoError, TableError

#: Options without a value that are no keys of a run.
_SWITCHES: Final = ("allow-plugins", "force", "overwrite", "quiet")
#: A command, which stays one; or an option, but for what a path may hold.
_COMMAND_OR_OPTION: Final = re.compile(
    r"`retexo (?!run --resume )[^`]*`"
    r"|(?:`retexo run )?--resume (?P<run>(?!RUN\b)[^`;]+)`?"
    r"|(?<![\w/.-])--(?P<option>[a-z]+(?:-[a-z]+)*)(?![\w/-])"
)


@contextmanager
def words_of_python() -> Iterator[None]:
    """Have named failures of the body name keyword arguments in place of options."""
    try:
        yield
    except RetexoError as error:
        error.args = tuple(in_python(text) for text in error.args)
        if isinstance(error, TableError):
            error.problems = tuple(in_python(text) for text in error.problems)
        raise


def in_python(text: str) -> str:
    """Return an error's text as a caller in Python needs it; a second time it stays as it is."""
    return _COMMAND_OR_OPTION.sub(_word, text)


def _word(found: re.Match[str]) -> str:
    if (run := found["run"]) is not None:
        return f"retexo_fl.Run.open({run!r}).resume()"
    option = found["option"]
    if option is None:
        return found[0]
    if option == "resume":
        return "resume()"
    name = option.replace("-", "_")
    info = key_infos().get(option)
    is_switch = option in _SWITCHES or (info is not None and info.expected == "true or false")
    return f"{name}=True" if is_switch else name
