"""How the scores of all items follow from a few exact ones."""

from adacur.approximation.embedding_regression import EmbeddingRegression
from adacur.approximation.gaussian import Gaussian
from adacur.approximation.pseudo_inverse import PseudoInverse

__all__ = ["EmbeddingRegression", "Gaussian", "PseudoInverse"]
