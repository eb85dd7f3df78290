"""Which unscored items to spend the next calls on."""

from adacur.acquisition.sampling import Softmax, TopK, Uniform

__all__ = ["Softmax", "TopK", "Uniform"]
