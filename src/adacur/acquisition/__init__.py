"""Which unscored items to spend the next calls on."""

from adacur.acquisition.oracle import Oracle
from adacur.acquisition.sampling import Softmax, TopK, Uniform

__all__ = ["Oracle", "Softmax", "TopK", "Uniform"]
