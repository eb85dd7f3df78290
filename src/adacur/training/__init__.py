"""Cross-encoders and dual encoders trained on a collection; torch is imported only when something is trained."""

from __future__ import annotations

from adacur.training.cross_encoder import CrossEncoderHead, train_cross_encoder
from adacur.training.dual_encoder import distill, train_dual_encoder
from adacur.training.negatives import Mixture
from adacur.training.run_folder import Trained, check_may_write, model_hash
from adacur.training.settings import TowerOptions, TrainingSettings
from adacur.training.teacher_scores import TeacherScores

__all__ = [
    "CrossEncoderHead",
    "Mixture",
    "TeacherScores",
    "TowerOptions",
    "Trained",
    "TrainingSettings",
    "check_may_write",
    "distill",
    "model_hash",
    "train_cross_encoder",
    "train_dual_encoder",
]
