"""Cross-encoders trained on a collection; torch is imported only when something is trained."""

from __future__ import annotations

from adacur.extras.train.cross_encoder import CrossEncoderHead, train_cross_encoder
from adacur.extras.train.emb_cross_encoder import (
    EmbHead,
    load_emb_cross_encoder,
    make_emb_cross_encoder,
    save_emb_cross_encoder,
)
from adacur.extras.train.negatives import Mixture
from adacur.extras.train.onnx_export import export_onnx
from adacur.extras.train.run_folder import Trained, TrainingSettings, check_may_write, model_hash

__all__ = [
    "CrossEncoderHead",
    "EmbHead",
    "Mixture",
    "Trained",
    "TrainingSettings",
    "check_may_write",
    "export_onnx",
    "load_emb_cross_encoder",
    "make_emb_cross_encoder",
    "model_hash",
    "save_emb_cross_encoder",
    "train_cross_encoder",
]
