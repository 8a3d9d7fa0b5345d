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
from retexo_fl.errors import AgreementError, ConfigurationError, TrainingDiverged
from retexo_fl.graph.parts.partition import GraphPartition
from retexo_fl.layers.named import layer_class
from retexo_fl.leakage.chosen_rows import with_faint_rows
from retexo_fl.leakage.counted import SINGLE, bare_rows, single_contributors
from retexo_fl.leakage.figures import Finding, Leakage
from retexo_fl.leakage.influence import play_influence, why_not_played
from retexo_fl.leakage.memory import check_audit_memory
from retexo_fl.leakage.peer_attacks import play_on_active_peer, play_on_peers
from retexo_fl.leakage.server_attacks import play_on_server
from retexo_fl.leakage.watch import Watch
from retexo_fl.masking.agreement import Agreement
from retexo_fl.methods.clients import client_class
from retexo_fl.methods.forecasts import forecast_of
from retexo_fl.methods.lazy.answers import LazyClient
from retexo_fl.methods.pieces.links.answers import LinkClient
from retexo_fl.progress import LiveTable
from retexo_fl.progress.steps import Step
from retexo_fl.training.cohorts import simulated_agreement
from retexo_fl.training.effective_plan import effective_plan
from retexo_fl.training.leak_warnings import leak_warnings
from retexo_fl.training.stage_model import ModelShape

#: Area under the curve of peers above which an audit warns.
TELLING_AUC: Final = 0.6
#: Values of ``second-rows`` that reveal less, trained to compare with; what reveals most first.
_NARROWER: Final[Mapping[str, tuple[str, ...]]] = {
    "full": ("class", "none"),
    "class": ("none",),
    "none": (),
}


def audit(
    asked: Asked, *, tell: Callable[[str], None], quiet: bool = False, force: bool = False
) -> Leakage:
    """Train as asked, twice, and play the attacks.

    Once as asked but in the clear, since what masks leave follows from that: the sums of cohorts;
    with noise, where there is to be some. And once without the edges across, to compare with. Both
    in this process, in a folder that is removed.

    Args:
        asked: The keys of a training.
        tell: Is handed sentences for the user.
        quiet: Show no progress.
        force: Train even if memory is not enough.

    Raises:
        RetexoError: Any named failure.
    """
    with tempfile.TemporaryDirectory(prefix="retexo-leakage-") as folder:
        return _audited(asked.of_run(), Path(folder), tell=tell, quiet=quiet, force=force)


def _audited(
    asked: Asked, folder: Path, *, tell: Callable[[str], None], quiet: bool, force: bool
) -> Leakage:
    config = settled(asked)
    _check(config)
    check_plugins(config)
    foreseen = GraphSize.foreseen(config)
    if foreseen is not None and not force:
        check_audit_memory(config, foreseen)
    loaded = asked.load(config, quiet=quiet)
    parts = loaded.parts
    config, _ = fitted(loaded.config, PlannedParts(parts), asked)
    if not force:
        check_audit_memory(config, GraphSize.of(parts))
    skipped: list[str] = []
    if effective_plan(config) == "cover":
        skipped.append(
            "edges from sums (boundary-plan cover): played on rows instead, which say as much or "
            "more; how many rows stand bare is counted"
        )
    clear = _in_the_clear(config)
    watch = Watch(
        config,
        keeps_updates=_plays_updates(clear, parts),
        agreement=_agreement(config, parts, skipped),
    )
    how = "with its noise" if config.update_dp else "in the clear"
    tell(f"training as asked, {how}, and watching what each party receives")
    run = folder / "as-asked"
    trained = _train(clear, parts, watch, run, quiet=quiet)
    tell("training without the edges across, to compare with")
    alone = [without_peers(part) for part in parts]
    cut = _train(clear, alone, None, folder / "alone", quiet=quiet)
    findings = _played(clear, watch, parts, skipped, quiet=quiet)
    reason = why_not_played(clear, parts)
    if not reason:
        influence, reason = play_influence(clear, run, parts, quiet=quiet)
        findings += [] if influence is None else [influence]
    skipped += [reason] if reason else []
    accuracy = {"as asked": trained, "no edges across": cut}
    acting = _with_faint_rows(
        clear, parts, watch, skipped, folder / "faint", tell=tell, quiet=quiet
    )
    findings += [] if acting is None else [acting]
    for rows in _NARROWER[config.second_rows]:
        narrow = _with_second_rows(
            asked, rows, parts, skipped, folder / f"rows-{rows}", tell=tell, quiet=quiet
        )
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
        warnings=tuple(_warnings(config, findings, parts, accuracy=accuracy, is_masked=is_masked)),
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


def _agreement(
    config: RunConfig, parts: Sequence[GraphPartition], skipped: list[str]
) -> Agreement | None:
    """Return whose sums would be opened together under masks; None of too few clients."""
    try:
        return simulated_agreement(config, PlannedParts(parts).counts(config))
    except AgreementError as error:
        skipped.append(f"masked sums: {error}")
        return None


def _in_the_clear(config: RunConfig) -> RunConfig:
    """Return a configuration that trains here what another one does, without masks.

    Where there is noise, masks stay: it is added to what they hide.
    """
    here = {"engine": "inline", "devices": "cpu", "links": "ideal", "resume": ""}
    clear = {} if config.update_dp else {"secure-aggregation": "none"}
    return make_config({**config_values(config), **here, **clear, "boundary-plan": "rows"})


def _train(
    config: RunConfig,
    parts: Sequence[GraphPartition],
    watch: Watch | None,
    out: Path,
    *,
    quiet: bool,
) -> float:
    """Train in this process; return what the test nodes are judged by, accuracy where there is."""
    from retexo_fl.client.factory import InProcessClients
    from retexo_fl.simulation.inline_engine import make_channel, run_clients

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
                rounds = sum(of[-1].number for of in watch.rounds.values())
                of_server = [
                    _beside_no_noise(one, other, rounds)
                    for one, other in zip(of_server, without, strict=True)
                ]
            found += of_server
            skipped += unplayed
        else:
            skipped.append(
                "labels, rows and members from updates: only of one local step, and of nodes that "
                "have one class"
            )
        if config.update_dp and shape.basis_blocks:
            skipped.append(
                f"features from sums for a basis with noise (update-dp {config.update_dp:g}): "
                "what it promises is in docs/noise-on-sums.md"
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


def _beside_no_noise(one: Finding, without: Finding, rounds: int) -> Finding:
    """Return what is reached of sums with noise, and say what would be of those without.

    A guess is of those, too. What is reached is of one sum of ``rounds``, or of one a layer; of the
    only one without rounds.
    """
    if without.masked is None:
        return one
    played = f"sum a layer of {rounds} noised ones in all" if rounds else "noised sum"
    return replace(
        one,
        guess=without.guess,
        by={**one.by, "masked_without_noise": without.masked},
        note=(
            f"{one.note}; of the masked sum without its noise {without.masked:.2f}. Played on one "
            f"{played}, whose clipping is not undone: no bound"
        ),
    )


def _with_faint_rows(
    config: RunConfig,
    parts: Sequence[GraphPartition],
    honest: Watch,
    skipped: list[str],
    out: Path,
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
        figure = _train(config, acting, watch, out, quiet=quiet)
    except TrainingDiverged as error:
        skipped.append(f"{name}: {error}")
        return None
    found = play_on_active_peer(peer, honest.crossed, watch.crossed, parts, seed=config.seed)
    if found is None:
        skipped.append(f"{name}: client {peer} sees no edges inside another part")
        return None
    return replace(found, by={**found.by, "test figure": figure})


def _with_second_rows(
    asked: Asked,
    rows: str,
    parts: Sequence[GraphPartition],
    skipped: list[str],
    out: Path,
    *,
    tell: Callable[[str], None],
    quiet: bool,
) -> tuple[float, Finding | None] | None:
    """Train with narrower ``second-rows``; return its figure, and what peers read of what crosses.

    None where that does not go with what is asked, which is then said.
    """
    narrower = replace(asked, values={**asked.values, "second-rows": rows})
    try:
        config = fitted(settled(narrower), PlannedParts(parts), narrower)[0]
        clear = _in_the_clear(config)
        ModelShape.of_part(clear, parts[0])
    except ConfigurationError as error:
        skipped.append(f"edges from rows with --second-rows {rows}: {error}")
        return None
    watch = Watch(config, keeps_updates=False)
    tell(f"training with --second-rows {rows}, to compare with")
    try:
        figure = _train(clear, parts, watch, out, quiet=quiet)
    except TrainingDiverged as error:
        skipped.append(f"edges from rows with --second-rows {rows}: {error}")
        return None
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
