"""Cross-encoders run here: reading checkpoints, tokenizing pairs, packing batches, and the kernels underneath."""
