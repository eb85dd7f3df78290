"""Tables, figures and a page from stored runs. Nothing is searched or measured again."""

from adacur_lab.report.decay import decay
from adacur_lab.report.figures import ScatterPanel, curves, error_bars, index_cost, latency, save, scatter
from adacur_lab.report.lines import Panel, panels, read_runs
from adacur_lab.report.tables import Table, collection_table, cost_table, difference_table, measure_table
from adacur_lab.report.training_curves import training_curves

__all__ = [
    "Panel",
    "ScatterPanel",
    "Table",
    "collection_table",
    "cost_table",
    "curves",
    "decay",
    "difference_table",
    "error_bars",
    "index_cost",
    "latency",
    "measure_table",
    "panels",
    "read_runs",
    "save",
    "scatter",
    "training_curves",
]
