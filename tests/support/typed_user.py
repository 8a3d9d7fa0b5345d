"""A user's script, which mypy checks with everything else (`.ci/run static`); nothing runs it."""

from __future__ import annotations

from pathlib import Path

import retexo_fl


class Printer:
    """A callback that need not inherit from anything."""

    def on_round(self, event: retexo_fl.RoundClosed) -> None:
        """Read what a round says."""
        _print(event.stage, event.round, event.val_accuracy)

    def on_end(self, run: retexo_fl.Run) -> None:
        """Read what a run says."""
        _print(run.result.test_accuracy)


def seen(event: retexo_fl.Event) -> None:
    """Take any event."""
    _print(event.time_s)


def use_everything() -> None:
    """Give what comes back the types that the pages promise."""
    run = retexo_fl.run(
        dataset="digits", clients=3, out=Path("runs/a"), callbacks=[Printer(), seen]
    )
    accuracy: float | None = run.result.test_accuracy
    losses: list[float | None] = [row.loss for row in run.history()]
    page: Path = run.report()
    try:
        retexo_fl.Run.open("runs/a").resume(quiet=True)
    except retexo_fl.RetexoError as error:
        _print(error)
    folder: Path = retexo_fl.partition(clients=2, out="parts")
    files: tuple[Path, ...] = run.predict(folder).files
    facts = retexo_fl.plan(partitions=folder)["clients"]
    logits = run.model()(retexo_fl.open_parts(folder))
    _print(accuracy, losses, page, files, facts, logits)
    # mypy complains of an exception that is not needed: types are not merely Any.
    wrong: str = run.path  # type: ignore[assignment]
    _print(wrong, run.result.accuracy)  # type: ignore[attr-defined]


def _print(*values: object) -> None:
    print(*values)  # noqa: T201 - never carried out
