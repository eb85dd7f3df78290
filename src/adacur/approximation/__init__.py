"""How the scores of all items follow from a few exact ones, and which items to score next."""

from adacur.approximation.acquisition import Softmax, TopK, Uniform
from adacur.approximation.embedding_regression import EmbeddingRegression
from adacur.approximation.gaussian_features import Features
from adacur.approximation.gaussian_model import GaussianModel
from adacur.approximation.item_factors import ItemFactors, PackedRows, ScoreScale, Storage
from adacur.approximation.pseudo_inverse import PseudoInverse

__all__ = [
    "EmbeddingRegression",
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
