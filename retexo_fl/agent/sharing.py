"""In place of an agent, before a client has its part: its summary goes out, the recipe comes in."""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

import numpy as np

from retexo_fl.agent import wire
from retexo_fl.agent.service import Outcome
from retexo_fl.agent.socket_server import SocketServer
from retexo_fl.client.api import (
    ColumnsRequest,
    ColumnSumsRequest,
    KeysRequest,
    RecipeAnswer,
    RecipeRequest,
    SummaryAnswer,
    SummaryRequest,
)
from retexo_fl.client.log_lines import line, logged_to_stderr
from retexo_fl.errors import (
    CheckpointError,
    ConfigurationError,
    LocalProtocolError,
    RoundIncomplete,
)
from retexo_fl.files import write_whole
from retexo_fl.graph.recipes import FeatureRecipe, TableSummary, parse_recipe

if TYPE_CHECKING:
    from retexo_fl.agent.masked_sharing import MaskedShare

logger = logging.getLogger(__name__)

#: An answer that got lost is asked for again.
_LINGER_S: Final = 5.0
_SOURCE: Final = Path("the server's recipe")
_ASKED: Final = (SummaryRequest, ColumnsRequest, KeysRequest, ColumnSumsRequest, RecipeRequest)
#: Of questions at once: columns, keys, a recipe.
_MOST_BYTES: Final = 2**28


def share_summary(
    summary: TableSummary,
    socket_path: Path,
    out: Path,
    *,
    wait_s: float,
    masked: MaskedShare | None = None,
) -> FeatureRecipe:
    """Answer at an agent's socket until the recipe has come, and store that.

    Args:
        summary: What is sent to whoever may use the socket.
        socket_path: Where the ClientApp looks for the client's agent.
        out: New file for the recipe; it is durable, and its owner's only.
        wait_s: How long the recipe is waited for.
        masked: Sends it under masks; None: it is sent as it is.

    Raises:
        ConfigurationError: An agent answers at the socket.
        RoundIncomplete: No recipe came in time.
        KeyboardInterrupt: A signal stopped it; the socket is removed.
    """
    share = SummaryShare(summary, out, masked)
    with logged_to_stderr():
        recipe = asyncio.run(share.run(socket_path, wait_s))
    if recipe is None:
        raise KeyboardInterrupt
    return recipe


class SummaryShare:
    """Answers questions about one summary; each may be asked again."""

    def __init__(self, summary: TableSummary, out: Path, masked: MaskedShare | None = None) -> None:
        self._summary = summary.without_source()
        self._out = out
        self._masked = masked
        self._recipe: FeatureRecipe | None = None
        self._over = asyncio.Event()

    async def run(self, socket_path: Path, wait_s: float) -> FeatureRecipe | None:
        """See :func:`share_summary`; None where a signal stopped it."""
        # An exception amid the steps that make the socket would leave that behind. Only the main
        # thread gets signals.
        in_main = threading.current_thread() is threading.main_thread()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if in_main else ():
            if signal.getsignal(number) is not signal.SIG_IGN:
                asyncio.get_running_loop().add_signal_handler(number, self._over.set)
        server = SocketServer(
            socket_path, self.answer, _control, expect=_expect, most_bytes=_MOST_BYTES
        )
        await server.start()
        logger.info(line("ready", rows=self._summary.rows, socket=str(socket_path)))
        try:
            async with asyncio.timeout(wait_s):
                await self._over.wait()
            if self._recipe is not None:
                await asyncio.sleep(_LINGER_S)
        except TimeoutError as error:
            raise RoundIncomplete(
                f"no recipe within {wait_s:g} s (--wait-s); expected `retexo features fit "
                "--superlink` on the server meanwhile"
            ) from error
        finally:
            server.close()
            server.remove()
        return self._recipe

    async def answer(self, request: wire.Request) -> Outcome:
        """Answer what is asked before there are parts.

        Raises:
            LocalProtocolError: It is another question.
            ConfigurationError: The recipe is none, or not for this table; or the summary is asked
                for in another way than its owner wants.
            CheckpointError: It could not be stored.
            SecureAggregationRefused: As :class:`.MaskedShare`.
        """
        answer: object
        match request.asked, self._masked:
            case SummaryRequest(), None:
                content = self._summary.to_json().encode()
                answer = SummaryAnswer(summary=np.frombuffer(content, np.uint8))
            case SummaryRequest(), _:
                raise ConfigurationError(
                    "secure-aggregation: this client sends its summary only under masks; expected "
                    "masked of `retexo features fit`, or none of `retexo features share`"
                )
            case ColumnsRequest(), None:
                raise ConfigurationError(
                    "secure-aggregation: this client sends its summary without masks; expected "
                    "none of `retexo features fit`, or masked of `retexo features share`, which "
                    "needs a roster file"
                )
            case ColumnsRequest() as asked, masked if masked is not None:
                answer = masked.columns(asked)
            case KeysRequest() as asked, masked if masked is not None:
                answer = masked.keys(asked)
            case ColumnSumsRequest() as asked, masked if masked is not None:
                answer = masked.sums(asked)
            case RecipeRequest() as asked, _:
                answer = RecipeAnswer(digest=self._take(asked.recipe.tobytes()))
            case _:
                raise _no_part(request.message)
        return Outcome(parts=wire.encode_answer(answer))

    def _take(self, content: bytes) -> str:
        recipe = parse_recipe(content, _SOURCE)
        check_recipe_fits(recipe, self._summary)
        if self._recipe is None:
            try:
                text = recipe.to_toml().encode()
                write_whole(self._out, [text], durable=True, private=True)
            except OSError as error:
                raise CheckpointError(
                    f"{self._out}: could not be written ({error.strerror})"
                ) from error
            self._recipe = recipe
            self._over.set()
        if recipe != self._recipe:
            raise ConfigurationError(
                f"recipe {recipe.digest[:16]}: another than {self._recipe.digest[:16]}, which is "
                "stored; expected one"
            )
        return recipe.digest


def check_recipe_fits(recipe: FeatureRecipe, summary: TableSummary) -> None:
    """Check that a recipe is one for the table of a summary.

    Raises:
        ConfigurationError: Its columns are not there, or are not of its kinds.
    """
    for name, told, here in (
        ("key-column", recipe.key_column, summary.key_column),
        ("label-column", recipe.label_column, summary.label_column),
    ):
        if told != here:
            raise ConfigurationError(
                f"{_SOURCE}: {name}: got {told[:60]!r}; expected {here[:60]!r}, as in "
                f"{summary.source}"
            )
    kinds = {**dict.fromkeys((c.column for c in recipe.numbers), "numbers")}
    kinds |= dict.fromkeys((c.column for c in recipe.categories), "texts")
    kinds |= dict.fromkeys((c.column for c in recipe.dates), "dates")
    for name, kind in kinds.items():
        column = summary.columns.get(name)
        if column is None:
            raise ConfigurationError(
                f"{_SOURCE}: {name[:60]!r} is no column of {summary.source}; expected its columns"
            )
        is_other = column.numbers.count if kind == "texts" else column.has_texts
        if is_other or (column.numbers.count and column.are_dates != (kind == "dates")):
            raise ConfigurationError(
                f"{_SOURCE}: {name[:60]!r} is a column of {kind}; expected what it is in "
                f"{summary.source}"
            )
    named = summary.label.texts | {str(number) for number in summary.label.whole}
    if recipe.classes and (missing := named.difference(recipe.classes)):
        raise ConfigurationError(
            f"{_SOURCE}: classes: {min(missing)[:60]!r} is missing; expected every label of "
            f"{summary.source}"
        )


def _expect(announced: wire.Announcement) -> None:
    if not isinstance(announced.asked, _ASKED):
        raise _no_part(announced.message)


def _no_part(message: str) -> LocalProtocolError:
    return LocalProtocolError(
        f"{message}: this client has no part yet and shares a summary of its table alone; expected "
        "`retexo agent run` in its place"
    )


async def _control(asked: Mapping[str, Any]) -> NoReturn:
    raise LocalProtocolError(
        f"{str(asked.get('ask'))[:40]}: this client has no agent yet, and shares a summary of its "
        "table; expected `retexo agent run` in its place"
    )
