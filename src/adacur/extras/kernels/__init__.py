"""Inference faster than transformers' own: packed batches, Triton kernels, CUDA graphs."""
