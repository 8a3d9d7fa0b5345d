"""An audit of a training: it is trained here, watched, and attacked with what each party got."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np

from retexo_fl.api.plan_exchanges import PlannedParts
from retexo_fl.api.settling import Asked, fitted, settled
from retexo_fl.api.training import check_plugins, result_of
from retexo_fl.client.part import without_peers
from retexo_fl.client.run_memory import GraphSize
from retexo_fl.config import RunConfig, config_values, make_config
from retexo_fl.errors import ConfigurationError, TrainingDiverged
from retexo_fl.graph.parts.partition import GraphPartition
from retexo_fl.layers.named import layer_class
from retexo_fl.leakage.chosen_rows import with_faint_rows
from retexo_fl.leakage.counted import SINGLE, bare_rows, single_contributors
from retexo_fl.leakage.figures import Finding, Leakage
from retexo_fl.leakage.influence import TELLING, play_influence
from retexo_fl.leakage.memory import check_audit_memory
from retexo_fl.leakage.peer_attacks import play_on_active_peer, play_on_peers
from retexo_fl.leakage.server_attacks import play_on_server
from retexo_fl.leakage.watch import Watch
from retexo_fl.methods.clients import client_class
from retexo_fl.methods.forecasts import forecast_of
from retexo_fl.methods.lazy.answers import LazyClient
from retexo_fl.methods.pieces.links.answers import LinkClient
from retexo_fl.progress import LiveTable
from retexo_fl.progress.steps import Step
from retexo_fl.training.effective_plan import effective_plan
from retexo_fl.training.leak_warnings import leak_warnings
from retexo_fl.training.stage_model import ModelShape
from retexo_fl.units import counted

#: Area under the curve of peers beyond which their owner is told.
TELLING_AUC: Final = 0.6
#: What tells less than what ``second-rows`` says.
_NARROWER: Final[Mapping[str, tuple[str, ...]]] = {
    "full": ("class", "none"),
    "class": ("none",),
    "none": (),
}


def audit(
    asked: Asked, *, tell: Callable[[str], None], quiet: bool = False, force: bool = False
) -> Leakage:
    """Train as asked, twice, and play the attacks.

    Once as asked but in the clear, since what masks leave follows from that: the sum; with noise,
    where there is to be some. And once without the edges across, to compare with. Both in this
    process, in a folder that is removed.

    Args:
        asked: The keys of a training.
        tell: Is handed sentences for the user.
        quiet: Show no progress.
        force: Train even if memory is not enough.

    Raises:
        RetexoError: Any named failure.
    """
    asked = asked.of_run()
    config = settled(asked)
    _check(config)
    check_plugins(config)
    foreseen = GraphSize.foreseen(config)
    if foreseen is not None and not force:
        check_audit_memory(config, foreseen)
    loaded = asked.load(config, quiet=quiet)
    config, _ = fitted(loaded.config, PlannedParts(loaded.parts), asked)
    if not force:
        check_audit_memory(config, GraphSize.of(loaded.parts))
    skipped: list[str] = []
    if effective_plan(config) == "cover":
        skipped.append(
            "edges from sums (boundary-plan cover): played on rows instead, which say as much or "
            "more; how many rows stand bare is counted"
        )
    clear = _in_the_clear(config)
    plays_updates = _plays_updates(clear, loaded.parts)
    watch = Watch(config, keeps_updates=plays_updates)
    how = "with its noise" if config.update_dp else "in the clear"
    tell(f"training as asked, {how}, and watching what each party receives")
    predicted: list[Finding] = []

    def predict_again(run: Path) -> None:
        one, reason = _from_predictions(clear, run, loaded.parts, quiet=quiet)
        predicted.extend([one] if one else [])
        skipped.extend([reason] if reason else [])

    trained = _train(clear, loaded.parts, watch, quiet=quiet, then=predict_again)
    tell("training without the edges across, to compare with")
    alone = [without_peers(part) for part in loaded.parts]
    cut = _train(clear, alone, None, quiet=quiet)
    findings = _played(clear, watch, loaded.parts, skipped, quiet=quiet) + predicted
    accuracy = {"as asked": trained, "no edges across": cut}
    acting = _with_faint_rows(clear, loaded.parts, watch, skipped, tell=tell, quiet=quiet)
    findings += [] if acting is None else [acting]
    for rows in _NARROWER[config.second_rows]:
        narrow = _with_rows_once(asked, rows, loaded.parts, skipped, tell=tell, quiet=quiet)
        if narrow is not None:
            accuracy[f"second-rows {rows}"], links = narrow
            findings += [] if links is None else [links]
    is_masked = config.secure_aggregation == "masked"
    return Leakage(
        config={key: str(value) for key, value in config_values(config).items()},
        dataset=config.graph_name,
        is_masked=is_masked,
        findings=tuple(findings),
        accuracy=accuracy,
        warnings=tuple(
            _warnings(config, findings, loaded.parts, accuracy=accuracy, is_masked=is_masked)
        ),
        not_played=tuple(skipped),
    )


def _check(config: RunConfig) -> None:
    if not issubclass(client_class(config, predicts=False), LazyClient | LinkClient):
        raise ConfigurationError(
            "algorithm: leakage plays attacks on rows that cross before rounds; expected lazy"
        )
    if config.engine == "deployment":
        raise ConfigurationError(
            "engine: leakage trains in this process, got deployment; expected inline, on parts "
            "that are here or on a graph like them"
        )
    if config.clients < 2:
        raise ConfigurationError("clients: leakage needs somebody to look; expected 2 or more")


def _plays_updates(config: RunConfig, parts: Sequence[GraphPartition]) -> bool:
    """Return whether an update is the gradient sum of losses of one node each, of its class."""
    of_classes = config.goal.splits_nodes and parts[0].label_kind.are_classes
    return of_classes and config.local_steps == 1


def _in_the_clear(config: RunConfig) -> RunConfig:
    """Return a configuration that trains here what another one does, without masks.

    Where there is noise, masks stay: it is added to what they hide.
    """
    here = {"engine": "inline", "devices": "cpu", "links": "ideal", "resume": ""}
    clear = {} if config.update_dp else {"secure-aggregation": "none"}
    return make_config({**config_values(config), **here, **clear, "boundary-plan": "rows"})


def _from_predictions(
    config: RunConfig, run: Path, parts: Sequence[GraphPartition], *, quiet: bool
) -> tuple[Finding | None, str]:
    """Play what a peer reads that changes its rows; nothing where two layers tell it nothing."""
    if config.later_rows == "none":
        return None, (
            "edges from repeated predictions: rows cross once, so that none comes back changed"
        )
    if config.later_rows == "class":
        return None, (
            "edges from repeated predictions: not played yet on classes, of which few change with "
            "a row that their owner reads"
        )
    if config.layers <= TELLING:
        return None, (
            f"edges from repeated predictions: with {counted(config.layers, 'layer')} a changed "
            "row comes back by rows of nodes that its owner touches, which it knows"
        )
    return play_influence(config, run, parts, quiet=quiet)


def _train(
    config: RunConfig,
    parts: Sequence[GraphPartition],
    watch: Watch | None,
    *,
    quiet: bool,
    then: Callable[[Path], None] = lambda run: None,
) -> float:
    """Train in this process; return what the test nodes are judged by, accuracy where there is.

    ``then`` is called with the run's directory, before it is removed.
    """
    from retexo_fl.client.factory import InProcessClients
    from retexo_fl.simulation.inline_engine import make_channel, run_clients

    with tempfile.TemporaryDirectory(prefix="retexo-leakage-") as folder:
        out = Path(folder) / "run"
        config = make_config({**config_values(config), "out": str(out)})
        clients = InProcessClients(list(parts), config, channel=make_channel(None))
        find = clients.find if watch is None else watch.watching(clients.find)
        table = LiveTable.of_run(config, quiet=quiet)
        try:
            with table:
                run_clients(config, find, [table.handle])
        finally:
            clients.close()
        result = result_of(out)
        then(out)
    if result.metric is not None and result.metric.value is not None:
        return float(result.metric.value)
    return float("nan") if result.test_accuracy is None else float(result.test_accuracy)


def _played(
    config: RunConfig,
    watch: Watch,
    parts: Sequence[GraphPartition],
    skipped: list[str],
    *,
    quiet: bool,
) -> list[Finding]:
    found: list[Finding] = []
    shape = ModelShape.of_part(config, parts[0])
    with Step("playing what the server can read", quiet=quiet):
        if _plays_updates(config, parts):
            of_server, unplayed = play_on_server(watch, parts, seed=config.seed)
            if config.update_dp:
                without, _ = play_on_server(watch.without_noise(), parts, seed=config.seed)
                of_server = [
                    _beside_no_noise(one, other)
                    for one, other in zip(of_server, without, strict=True)
                ]
            found += of_server
            skipped += unplayed
        else:
            skipped.append(
                "labels, rows and members from updates: only of one local step, and of nodes that "
                "have one class"
            )
        if config.update_dp and not config.has_rounds:
            skipped.append(
                f"labels and rows from products for a regression with noise (update-dp "
                f"{config.update_dp:g}): what it promises is in docs/masked-sums.md"
            )
        found += [one for one in [single_contributors(config, shape, parts)] if one]
    with Step("playing what peers can read", quiet=quiet):
        links = play_on_peers(watch.crossed, parts, seed=config.seed)
        if links is None:
            skipped.append("edges from rows: no two clients see edges inside each other's part")
        else:
            found.append(links)
        layer = layer_class(config.model)
        bare = None
        if layer.sums_messages and config.goal.sums_suffice:
            bare = bare_rows([forecast_of(config).part_as_read(part) for part in parts])
        found += [] if bare is None else [bare]
    return found


def _beside_no_noise(one: Finding, without: Finding) -> Finding:
    """Return what is reached of sums with noise, and say what would be of those without."""
    if without.masked is None:
        return one
    return replace(
        one,
        by={**one.by, "masked_without_noise": without.masked},
        note=f"{one.note}; of the masked sum without its noise {without.masked:.2f}",
    )


def _with_faint_rows(
    config: RunConfig,
    parts: Sequence[GraphPartition],
    honest: Watch,
    skipped: list[str],
    *,
    tell: Callable[[str], None],
    quiet: bool,
) -> Finding | None:
    """Train where the peer that sees most sends rows near zero; return what it reads then."""
    name = "edges from rows beside faint ones"
    peer = max(range(len(parts)), key=lambda client: parts[client].num_boundary)
    if config.later_rows != "full":
        beside = "" if config.later_rows == "none" else "; not played yet on classes beside them"
        skipped.append(
            f"{name}: rows cross once, and those that come are of their owner alone{beside}"
        )
        return None
    if parts[peer].is_structural or not parts[peer].num_features:
        skipped.append(f"{name}: nodes have no features that a peer could choose")
        return None
    acting = list(parts)
    acting[peer] = with_faint_rows(parts[peer], np.random.default_rng([config.seed, peer]))
    watch = Watch(config, keeps_updates=False)
    tell(f"training with rows near zero of client {peer}, and watching what it receives")
    try:
        _train(config, acting, watch, quiet=quiet)
    except TrainingDiverged as error:
        skipped.append(f"{name}: {error}")
        return None
    found = play_on_active_peer(peer, honest.crossed, watch.crossed, parts, seed=config.seed)
    if found is None:
        skipped.append(f"{name}: client {peer} sees no edges inside another part")
    return found


def _with_rows_once(
    asked: Asked,
    rows: str,
    parts: Sequence[GraphPartition],
    skipped: list[str],
    *,
    tell: Callable[[str], None],
    quiet: bool,
) -> tuple[float, Finding | None] | None:
    """Train with rows that cross once; return its figure, and what peers read of these rows.

    None where that does not go with what is asked, which is then said.
    """
    narrower = replace(asked, values={**asked.values, "second-rows": rows})
    try:
        config = fitted(settled(narrower), PlannedParts(parts), narrower)[0]
        clear = _in_the_clear(config)
        ModelShape.of_part(clear, parts[0])
    except ConfigurationError as error:
        skipped.append(f"edges from rows that cross once: {error}")
        return None
    watch = Watch(config, keeps_updates=False)
    tell(f"training with --second-rows {rows}, to compare with")
    figure = _train(clear, parts, watch, quiet=quiet)
    links = play_on_peers(watch.crossed, parts, seed=config.seed)
    if links is not None:
        links = replace(links, attack=f"edges inside a part, --second-rows {rows}")
    return figure, links


def _warnings(
    config: RunConfig,
    findings: Sequence[Finding],
    parts: Sequence[GraphPartition],
    *,
    accuracy: Mapping[str, float],
    is_masked: bool,
) -> list[str]:
    told = list(
        leak_warnings(
            config,
            is_masked=is_masked,
            train_nodes=[int(part.train_mask.sum()) for part in parts],
            features=parts[0].num_features,
            of_one_client=_of_one_client(findings),
        )
    )
    by_name = {one.attack: one for one in findings}
    links = by_name.get("edges inside a part, from rows")
    if links is not None and links.clear > TELLING_AUC:
        floor = links.cut if links.cut is not None else links.guess
        told.append(
            f"peers rank edges inside each other's part with ROC AUC {links.clear:.2f}; by the "
            f"edges across alone {floor:.2f}. {_told(accuracy)}"
        )
    return told


def _of_one_client(findings: Sequence[Finding]) -> int | None:
    found = [one.by["features"] for one in findings if one.attack == SINGLE]
    return found[0] if found else None


def _told(accuracy: Mapping[str, float]) -> str:
    figures = ", ".join(f"{value:.4f} {name}" for name, value in accuracy.items())
    return f"The test figure is {figures} (--algorithm drop cuts them)"
