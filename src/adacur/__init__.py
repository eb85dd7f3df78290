"""k-nearest-neighbour search with cross-encoders, within a budget of scorer calls."""
