"""Feature recipes: how columns of nodes become features and classes, alike at all clients."""

from retexo_fl.graph.recipes.column_sums import (
    TableColumns,
    merge_columns,
    number_of,
    sum_of_nothing,
    summary_of_sums,
)
from retexo_fl.graph.recipes.fitting import FitOptions, fit_by_type, fit_recipe
from retexo_fl.graph.recipes.recipe import (
    RECIPE_NAME,
    FeatureRecipe,
    parse_recipe,
    read_recipe,
)
from retexo_fl.graph.recipes.summary import (
    TableSummary,
    merge_summaries,
    parse_summary,
    read_summary,
)

__all__ = [
    "RECIPE_NAME",
    "FeatureRecipe",
    "FitOptions",
    "TableColumns",
    "TableSummary",
    "fit_by_type",
    "fit_recipe",
    "merge_columns",
    "merge_summaries",
    "number_of",
    "parse_recipe",
    "parse_summary",
    "read_recipe",
    "read_summary",
    "sum_of_nothing",
    "summary_of_sums",
]
