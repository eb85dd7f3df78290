"""How the scores of all items follow from a few exact ones."""

from adacur.approximation.gaussian import Gaussian
from adacur.approximation.pseudo_inverse import PseudoInverse

__all__ = ["Gaussian", "PseudoInverse"]
