"""Scores of 10,033 Wikipedia articles against 250 questions by a cross-encoder, and their embeddings: numbers only."""
