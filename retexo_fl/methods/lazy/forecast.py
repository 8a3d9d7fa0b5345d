"""What lazy message passing moves, and what ``retexo plan`` says of it.

Symbols as in :mod:`retexo_fl.training.volume`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from retexo_fl.config import RunConfig
from retexo_fl.config.profiles import LAZY_PROFILES
from retexo_fl.training.effective_plan import effective_plan
from retexo_fl.training.stage_model import ModelShape, num_weights
from retexo_fl.training.volume import (
    Forecast,
    PredictedVolume,
    TrainingSize,
    basis_values,
    column_values,
    comparison_values,
    item_bytes,
    parameters_by_stage,
    solved_values,
)
from retexo_fl.units import format_counted


class LazyForecast(Forecast):
    """Vectors cross once before each stage, and inside none."""

    predicts_links = True
    profiles = LAZY_PROFILES

    def volume(self, shape: ModelShape, size: TrainingSize) -> PredictedVolume:
        """Predict every message of the protocol.

        Boundary: ``V sum_m H_m``, once per stage; less where
        :meth:`.ModelShape.crosses_as_inputs`, and of a graph with types each stage with its own V.
        Updates: R of every stage from each training client.
        Weights: with every round; once more to validate w(R); the selected ones with the next
        stage's exchange; those of the last stage for the test. A basis of the features comes before
        all that. Where the last layer is solved for, no stage has rounds: each client answers sums
        of products once. A stage that is trained as something else, too, has as many rounds again
        at most. So have the last two layers together, whose weights are then tested. What a floor
        of the model takes comes after the last stage. Where nodes have no
        features, columns of the edges come first. Sums of far types cross for a basis.
        """
        basis_up, basis_down, basis = basis_values(shape)
        comparison_up, comparison_down = comparison_values(shape)
        columns_up, columns_down, columns = column_values(shape)
        far = size.vectors_before(shape.far_stage) * shape.features if shape.far_types else 0
        parameters = self.parameters(shape)
        item = item_bytes(shape)
        crossing = sum(
            size.vectors_before(stage) * shape.exchange_width(stage)
            for stage in range(shape.stages)
        )
        stages = [] if shape.passes_sums else list(zip(size.rounds, parameters, strict=True))
        tested = parameters[-1]
        again = [*zip(size.further_rounds, parameters, strict=True)]
        if shape.refines:
            tested = sum(parameters[-2:])
            again.append((size.refined, tested))
        stages += [one for one in again if one[0]]
        updates = sum(r * p for r, p in stages)
        grams = 0
        if shape.passes_sums:
            grams = size.clients * solved_values(shape)
        beyond = size.validation_clients * sum(parameters)
        beyond += size.validation_clients * sum(p for rounds, p in again if rounds)
        beyond += size.clients * sum(parameters[:-1])
        if shape.has_floor:
            grams = size.clients * solved_values(shape.floor)
            of_floor = num_weights(shape.floor, shape.layers - 1)
            beyond += size.validation_clients * of_floor
            tested = of_floor if size.tests_floor else tested
        beyond += size.clients * (tested + basis) + size.training_clients * basis_down
        beyond += size.asked_clients * comparison_down
        beyond += size.clients * columns_down
        grams += size.clients * columns_up
        sums = size.training_clients * basis_up + size.asked_clients * comparison_up + grams
        return PredictedVolume(
            boundary_training=item * (crossing + size.vectors * columns + far),
            boundary_evaluation=0,
            updates_up=item * (size.training_clients * updates + sums),
            weights_training=item * sum(size.weights_of_rounds(r, p) for r, p in stages),
            weights_beyond=item * beyond,
        )

    def sentence(self, config: RunConfig, *, vectors: int, drawn: int | None) -> str:
        """See :class:`.Forecast`."""
        del vectors, drawn
        rounds = format_counted(config.rounds, "round")
        if config.second_rows == "none":
            return f"1 exchange, before the first layer's {rounds}; none before later ones"
        if config.second_rows == "class":
            return f"1 exchange before the first layer's {rounds}; classes alone before later ones"
        exchanges = format_counted(len(config.stage_rounds), "exchange")
        features = ": features first, then" if config.crosses_ahead else ","
        return f"{exchanges}{features} one before each layer's {rounds}"

    def parameters(self, shape: ModelShape) -> Sequence[int]:
        """See :class:`.Forecast`."""
        return parameters_by_stage(shape)

    def first_reach(self, shape: ModelShape) -> int:
        """See :class:`.Forecast`: rows of its own stage alone, but where types are taught."""
        return int(bool(shape.far_types or (shape.taught and not shape.has_basis)))

    def is_comparable(self, shape: ModelShape) -> bool:
        """See :class:`.Forecast`: standard training reads features, and trains every layer."""
        return not (shape.has_basis or shape.passes_sums or shape.link_head)

    def adds_nothing(self, config: RunConfig) -> bool:
        """See :class:`.Forecast`: rows of peers stay apart, which sums do not."""
        return config.codec == "fixed" and effective_plan(config) == "rows"

    def exchanges(self, config: RunConfig, shape: ModelShape) -> Sequence[int]:
        """See :class:`.Forecast`."""
        del config
        return (1,) * shape.stages

    def boundary_at_most(
        self, shape: ModelShape, size: TrainingSize, coded: Callable[[int], int]
    ) -> int:
        """See :class:`.Forecast`."""
        del size
        return sum(map(coded, (*range(shape.stages), *shape.later_stages)))
