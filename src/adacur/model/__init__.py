"""How the scores of all items follow from a few exact ones, and which items to score next."""

from adacur.model.acquire import Softmax, TopK, Uniform
from adacur.model.cur import PseudoInverse
from adacur.model.features import Features
from adacur.model.gaussian_model import GaussianModel
from adacur.model.rows import ItemFactors, PackedRows, Storage
from adacur.model.scale import ScoreScale

__all__ = [
    "Features",
    "GaussianModel",
    "ItemFactors",
    "PackedRows",
    "PseudoInverse",
    "ScoreScale",
    "Softmax",
    "Storage",
    "TopK",
    "Uniform",
]
