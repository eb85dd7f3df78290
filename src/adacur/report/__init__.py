"""Tables, figures and a page from stored runs. Nothing is searched or measured again."""

from adacur.report.decay import decay
from adacur.report.figures import ScatterPanel, curves, error_bars, index_cost, latency, save, scatter
from adacur.report.lines import Panel, panels, read_runs
from adacur.report.page import Report, write_report
from adacur.report.summary import summary
from adacur.report.tables import Table, collection_table, cost_table, difference_table, measure_table
from adacur.report.training_curves import training_curves

__all__ = [
    "Panel",
    "Report",
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
    "summary",
    "training_curves",
    "write_report",
]
