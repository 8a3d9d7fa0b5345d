"""Rolling evaluation: train on the edges before each of several cuts in time, judge by later ones.

Each training is a run of a sweep; then its clients predict, with the edges before the next cut, the
nodes that the run tests.
"""

from __future__ import annotations

import calendar
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import date, timedelta
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from retexo_fl.api.rows import Rows
from retexo_fl.api.spelling import words_of_python
from retexo_fl.api.sweep_graph import SweepGraph
from retexo_fl.api.sweep_rows import SweepRow
from retexo_fl.api.sweeps import CUTS_NAME, JUDGED, checked_keys, sweep_of, write_table
from retexo_fl.api.training import say
from retexo_fl.api.values import takes_keys, with_frames
from retexo_fl.config import RunConfig, Scalar
from retexo_fl.dates import MOMENT, Moment, check_order, is_moment, moment_text
from retexo_fl.errors import ConfigurationError, RetexoError
from retexo_fl.files import several_paths
from retexo_fl.units import format_counted

if TYPE_CHECKING:
    from typing import Unpack

    from retexo_fl.api.options import SweepOptions, every_key
    from retexo_fl.graph.sources.tables import AnyTable

#: A year of days.
_MOST_CUTS: Final = 400
_DAY_S: Final = 86_400
_REFUSED: Final = {
    "edges-before": "the cuts say which edges are there",
    "partitions": "parts have one cut; expected nodes and edges, or a graph",
    "resume": "the same command goes on with what is not finished",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CutRow:
    """One training, and how good its model is by later edges.

    Attributes:
        trained_before: The model is trained and chosen by the edges before this point in time.
        judged_before: Its test nodes are predicted by the edges before this one.
        run: The training.
        judged: What ``predictions.json`` holds; None where the training failed, or this did.
        error: What judging failed by.
    """

    trained_before: str
    judged_before: str
    run: SweepRow
    judged: Mapping[str, Any] | None = None
    error: str = ""

    def __repr__(self) -> str:
        return f"<CutRow {self.trained_before} to {self.judged_before}: {self.told()}>"

    @property
    def failure(self) -> str:
        """What training or judging failed by; empty where both are done."""
        return self.run.error or self.error

    def cells(self) -> dict[str, Any]:
        """Return it as cells of a table; a figure that is not there is None.

        ``test`` is by the edges before ``judged_before``, ``test_by_trained`` by those of the
        training; ``payload_bytes`` are those of the training, ``judging_bytes`` of the other.
        """
        trained = self.run.cells()
        cells = {
            "trained_before": self.trained_before,
            "judged_before": self.judged_before,
            "state": "failed" if self.failure else "finished",
            **{name: trained[name] for name in ("metric", "validation")},
            "test_by_trained": trained["test"],
            **dict.fromkeys(("test", "test_nodes", "judging_bytes")),
            **{name: trained[name] for name in ("payload_bytes", "seconds")},
            "error": self.failure,
            "run": trained["run"],
        }
        if self.judged is not None:
            tested, metric = self.judged["labelled"]["test"], self.judged.get("metric")
            share = tested["right"] / tested["nodes"] if tested.get("right") is not None else None
            cells["test"] = share if metric is None else metric["test"]
            cells["test_nodes"] = tested["nodes"]
            cells["judging_bytes"] = self.judged["bytes"]["payload"]["total"]
        return cells

    def told(self) -> str:
        """Return in words how good it is."""
        if self.failure:
            return f"failed: {self.failure}"
        cells = self.cells()
        value = "undefined" if cells["test"] is None else f"{cells['test']:.4f}"
        return f"test {cells['metric']} {value}"


@words_of_python()
@takes_keys
def rolling(
    cuts: str | Sequence[str | float | date],
    *,
    out: str | Path,
    jobs: int = 1,
    profile: str | None = None,
    graph: object | None = None,
    quiet: bool = False,
    overwrite: bool = False,
    **keys: Unpack[SweepOptions],
) -> Rows[CutRow]:
    """Train on the edges before each of several points in time, and judge by those before the next.

    Called again with the same folder it goes on with what is not finished.

    Args:
        cuts: ``daily``, ``weekly``, ``monthly``, ``quarterly`` or ``yearly``: where such a period
            begins after the first edge of the table, up to the one after the last edge. Or the
            points in time, at least two that ascend. With ``split="time"``, at least three: nodes
            from the cut before on validate, those from the training's cut to the next test, all
            earlier ones train.
        out: Folder of the runs, of ``cuts.csv``, which is the same table, and of predictions.
        jobs: How many are trained at once, each in a process of its own.
        profile: As in :func:`retexo_fl.run`.
        graph: Likewise.
        quiet: Do not say how runs end.
        overwrite: Begin anew, as in :func:`retexo_fl.sweep`.
        keys: Of all runs, as in :func:`retexo_fl.run`, but for ``edges_before``.

    Raises:
        ConfigurationError: The cuts are none, or do not ascend; or keys do not go with them.
        InputError: The graph cannot be read.
        Interrupted: Ctrl-C.
    """
    if TYPE_CHECKING:
        every_key(**keys)  # type: ignore[misc]
    values, graph = with_frames(dict(keys), graph)
    values |= {} if profile is None else {"profile": profile}
    listed = cuts if isinstance(cuts, str) else ",".join(str(moment_text(cut)) for cut in cuts)
    tell = (lambda _: None) if quiet else say
    return rolling_of(
        checked_keys({key: value for key, value in values.items() if value is not None}),
        listed,
        Path(out),
        jobs=jobs,
        tell=tell,
        graph=graph,
        overwrite=overwrite,
    )


def rolling_of(
    values: Mapping[str, Scalar],
    cuts: str,
    out: Path,
    *,
    tell: Callable[[str], None],
    jobs: int = 1,
    graph: object | None = None,
    overwrite: bool = False,
) -> Rows[CutRow]:
    """Do what :func:`rolling` does, with keys as a configuration has them.

    Args:
        values: Keys, and ``profile``.
        cuts: A period, or points in time with commas between them.
        out: Folder of all.
        tell: Is handed a sentence for each training, and each judgement.
        jobs: Trainings at once.
        graph: What all train on; None for what the keys name.
        overwrite: Replace what is there.
    """
    for key, why in _REFUSED.items():
        if key in values:
            raise ConfigurationError(f"{key}: cannot be given with cuts; {why}")
    moments = _moments(cuts, values, graph)
    steps = [*_steps(values, moments)]
    runs = [keys for keys, _ in steps]
    _config_of(runs[0], graph)
    handed = None if graph is None else SweepGraph(graph, quiet=True)
    rows = sweep_of(runs, out, jobs=jobs, tell=tell, overwrite=overwrite, graph=handed)
    found: list[CutRow] = []
    for row, (keys, until) in zip(rows, steps, strict=True):
        begun = CutRow(trained_before=str(keys["edges-before"]), judged_before=until, run=row)
        found.append(_judged(begun, keys, out / JUDGED / row.path.name, graph))
        tell(f"before {until}: {found[-1].told()}")
        write_table([row.cells() for row in found], out / CUTS_NAME)
    return Rows(found, CutRow.cells)


def _steps(
    values: Mapping[str, Scalar], moments: Sequence[Moment]
) -> Iterator[tuple[dict[str, Scalar], str]]:
    """Yield the keys of each training, and before when the edges are that judge it."""
    from retexo_fl.graph.time_split import BY_TIME

    texts = [moment.text for moment in moments]
    if values.get("split") != BY_TIME:
        for before, until in pairwise(texts):
            yield {**values, "edges-before": before}, until
        return
    for past, before, until in zip(texts, texts[1:], texts[2:], strict=False):
        split = f"{BY_TIME}:{past}/{before}/{until}"
        yield {**values, "split": split, "edges-before": before}, until


# ---- points in time -----------------------------------------------------------------------------


def _next_month(day: date, months: int) -> date:
    month = day.year * 12 + (day.month - 1) // months * months + months
    return date(month // 12, month % 12 + 1, 1)


#: From a day to the first day of the next period.
_PERIODS: Final[Mapping[str, Callable[[date], date]]] = {
    "daily": lambda day: day + timedelta(days=1),
    "weekly": lambda day: day + timedelta(days=7 - (day.weekday() - calendar.MONDAY)),
    "monthly": lambda day: _next_month(day, 1),
    "quarterly": lambda day: _next_month(day, 3),
    "yearly": lambda day: _next_month(day, 12),
}


def _moments(cuts: str, values: Mapping[str, Scalar], graph: object | None) -> list[Moment]:
    """Return the points in time, which ascend."""
    from retexo_fl.graph.time_split import BY_TIME

    if cuts in _PERIODS:
        found = _boundaries(cuts, values, graph)
    else:
        found = [_moment(text.strip()) for text in cuts.split(",")]
    check_order(found, key="cuts", text=cuts)
    least = 3 if values.get("split") == BY_TIME else 2
    if not least <= len(found) <= _MOST_CUTS:
        which = " with split time" if least == 3 else ""
        raise ConfigurationError(
            f"cuts: {cuts[:60]} is {format_counted(len(found), 'point')} in time; expected {least} "
            f"to {_MOST_CUTS}{which}"
        )
    return found


def _moment(text: str) -> Moment:
    if not text or not is_moment(text):
        raise ConfigurationError(
            f"cuts: got {text[:40]!r}; expected {', '.join(_PERIODS)}, or points in time with "
            f"commas between them, each {MOMENT}"
        )
    return Moment.of(text, key="cuts")


def _boundaries(period: str, values: Mapping[str, Scalar], graph: object | None) -> list[Moment]:
    """Return where a period begins after the first edge, up to the one after the last edge."""
    from retexo_fl.client.preparation import edge_rules
    from retexo_fl.graph.sources.tables import tables_of
    from retexo_fl.graph.sources.tables.edges import first_and_last_time

    tables = tables_of(graph)
    edges: Sequence[AnyTable] = ()
    if tables is not None and tables[1] is not None:
        edges = [tables[1]]
    elif tables is None and "edges" in values:
        edges = several_paths(str(values["edges"]))
    if not edges:
        raise ConfigurationError(
            f"cuts: {period} needs a table of edges; expected points in time, such as "
            "2024-03-01,2024-04-01"
        )
    without_time = {key: value for key, value in values.items() if key != "split"}
    rules = edge_rules(_config_of(without_time, graph))
    firsts, lasts = zip(*(first_and_last_time(table, rules) for table in edges), strict=True)
    day, end = (
        date(1970, 1, 1) + timedelta(days=int(t // _DAY_S)) for t in (min(firsts), max(lasts))
    )
    found = []
    while day <= end:
        day = _PERIODS[period](day)
        found.append(Moment.of(day.isoformat(), key="cuts"))
        if len(found) > _MOST_CUTS:
            raise ConfigurationError(
                f"cuts: {period} makes more than {_MOST_CUTS} from {found[0].text} on; expected a "
                "longer period, or points in time"
            )
    return found


# ---- judging ------------------------------------------------------------------------------------


def _config_of(keys: Mapping[str, Scalar], graph: object | None) -> RunConfig:
    """Return the configuration that a run of these keys has."""
    from retexo_fl.api.settling import Asked, settled

    given = dict(keys)
    profile = given.pop("profile", None)
    asked = Asked(values=given, profile=None if profile is None else str(profile), graph=graph)
    config = settled(asked.of_run())
    if not config.goal.splits_nodes:
        raise ConfigurationError(
            "cuts: the task tests edges, which are of one cut; expected a task of labels of nodes"
        )
    return config


def _judged(row: CutRow, keys: Mapping[str, Scalar], out: Path, graph: object | None) -> CutRow:
    """Return the row with what its model makes of later edges."""
    from retexo_fl.api.predicting import AskedPredictions, predict_asked
    from retexo_fl.client.preparation import later_parts

    if row.run.error:
        return row
    config = _config_of(keys, graph)
    asked = AskedPredictions(
        run=row.run.path,
        values={},
        parts=lambda _: later_parts(config, row.judged_before, graph=graph),
        out=out,
        allow_plugins=True,
        quiet=True,
    )
    try:
        with _unsaid():
            _, told = predict_asked(asked, again=lambda _: "the same command", tell=lambda _: None)
    except RetexoError as error:
        return replace(row, error=str(error))
    return replace(row, judged=told)


@contextmanager
def _unsaid() -> Iterator[None]:
    """Leave out what reading the graph says, which the trainings have in their logs."""
    logger = logging.getLogger("retexo_fl.graph")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
