"""How a graph is read: its edges, its labels, and whether it is trained on or predicted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from retexo_fl.graph.labels import CLASSES, LabelKind
from retexo_fl.graph.sources.edge_rules import STRICT, EdgeRules
from retexo_fl.relations import Relations


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """How a graph is read.

    Attributes:
        rules: How its edges are read.
        labels: What labels are.
        label: Which they are, of sources that are no tables (:func:`.chosen_labels`).
        masks: Whether a split that it brings is used; else it is not looked at.
        outputs: Of the model that predicts the graph, which then needs neither labels nor edges;
            None to train on it.
        classes: Names of the model's classes, where they have names.
        num_features: F of the model, which sparse text does not say; None where it is free, 0 to
            read no features, whether or not there are any.
        types: The column, or attribute, by which nodes and edges of one source have types; empty
            where they are not read. Sources that are of types by themselves do not need it.
        label_types: Of a graph with types, those whose labels are read; empty for all.
        relations: Of the model, whose types and relations come in its order, and whose types with
            labels alone are read with them; None where they are free.
    """

    rules: EdgeRules = STRICT
    labels: LabelKind = CLASSES
    label: str = ""
    masks: bool = True
    outputs: int | None = None
    classes: tuple[str, ...] = ()
    num_features: int | None = None
    types: str = ""
    label_types: frozenset[str] = frozenset()
    relations: Relations | None = None

    @property
    def needs_labels(self) -> bool:
        """Whether a graph without labels is refused."""
        return self.outputs is None and self.labels.are_read

    @property
    def may_lack_edges(self) -> bool:
        """Whether a graph without edges is taken."""
        return self.outputs is not None


#: Undirected edges, each once, and classes.
TRAINING: Final = Reading()
