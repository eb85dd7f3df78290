"""Records, budget, hits, trace, protocols, errors, seeds, extras. Numpy only; no I/O."""
