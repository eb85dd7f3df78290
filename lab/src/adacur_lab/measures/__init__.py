"""Measures that a paper needs and a search does not: spectra, errors of predictions, ceilings, costs."""

from adacur_lab.measures.anchor_spectrum import Spectrum, spectrum
from adacur_lab.measures.cost import search_cost
from adacur_lab.measures.first_stage import first_stage_ceiling, phantom_share
from adacur_lab.measures.prediction import approximation_error, predictions
from adacur_lab.measures.strict_recall import strict_recall

__all__ = [
    "Spectrum",
    "approximation_error",
    "first_stage_ceiling",
    "phantom_share",
    "predictions",
    "search_cost",
    "spectrum",
    "strict_recall",
]
