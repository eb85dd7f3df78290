"""The laboratory of adacur: the paper's experiments and figures, rivals, oracles and measures of them.

It imports the library; the library never imports it. `python -m adacur_lab reproduce all` draws every figure.
"""
