"""What the server and peers can read, as far as sizes and keys alone say it; no attack is played.

The one place that decides of what `retexo plan`, a run and an audit warn.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from retexo_fl.config import RunConfig
from retexo_fl.units import format_count, format_counted

#: Of a client with fewer train nodes the server reads almost all labels from one update in the
#: clear (docs/measured/privacy.md, "Small clients").
FEW_TRAIN_NODES: Final = 10
#: From this share of features of one client alone on, a run without masks is warned, too.
_TELLING_SHARE: Final = 0.05
#: Of a model of fewer layers the last rows to cross are of nodes that a peer touches. Of links what
#: crosses are sums over all neighbours, each a layer ahead of such rows.
_TELLING_LAYERS: Final = 3
_TELLING_LAYERS_OF_LINKS: Final = 2


def leak_warnings(
    config: RunConfig,
    *,
    is_masked: bool,
    train_nodes: Iterable[int],
    features: int = 0,
    of_one_client: int | None = None,
) -> tuple[str, ...]:
    """Return what owners should know before a training, a line each: what, and what to do.

    Args:
        config: Of a training that sends updates, or sums that layers follow from.
        is_masked: The server reads sums over whole cohorts alone.
        train_nodes: By client; of links, train edges, which are not counted.
        features: F, of all clients.
        of_one_client: How many features one client alone adds to; None where nobody has counted.
    """
    sizes = list(train_nodes)
    if len(sizes) < 2:
        return ()
    few = sum(0 < size < FEW_TRAIN_NODES for size in sizes)
    told: list[str] = []
    if few and not is_masked and config.goal.splits_nodes:
        have = "has" if few == 1 else "have"
        told.append(
            f"{few} of {format_counted(len(sizes), 'client')} {have} fewer than "
            f"{FEW_TRAIN_NODES} train nodes, whose labels the server reads from sums "
            "in the clear; --secure-aggregation masked hides them (docs/privacy.md)"
        )
    single = of_one_client or 0
    if single > (0 if is_masked else _TELLING_SHARE * features):
        told.append(
            f"{format_count(single)} of {format_counted(features, 'feature')} are of one client "
            "alone, so that sums of them are its own, masked or not; leave such columns out where "
            "that matters (docs/privacy.md)"
        )
    telling = _TELLING_LAYERS if config.goal.splits_nodes else _TELLING_LAYERS_OF_LINKS
    if config.layers >= telling and config.later_rows == "full":
        told.append(
            f"with {config.layers} layers a peer that changes a row between two predictions reads "
            f"edges inside others' parts; {_less(config)}few predictions (most-questions in "
            "agent.toml; docs/privacy.md)"
        )
    return tuple(told)


def _less(config: RunConfig) -> str:
    # Sums over neighbours cross in place of rows: there are no others to choose.
    return "--second-rows none, or " if config.goal.splits_nodes else ""
