"""Cross-encoders and dual encoders trained on a collection; torch is imported only when something is trained."""

from __future__ import annotations

from adacur.training.cross_encoder import CrossEncoderHead, train_cross_encoder
from adacur.training.distillation import distill
from adacur.training.dual_encoder import train_dual_encoder
from adacur.training.fitting import Fitted
from adacur.training.run_folder import check_may_write, model_hash
from adacur.training.settings import Precision, TrainingSettings
from adacur.training.teacher_scores import TeacherScores
from adacur.training.tower_options import Pooling, Towers
from adacur.training.trained import Trained

__all__ = [
    "CrossEncoderHead",
    "Fitted",
    "Pooling",
    "Precision",
    "TeacherScores",
    "Towers",
    "Trained",
    "TrainingSettings",
    "check_may_write",
    "distill",
    "model_hash",
    "train_cross_encoder",
    "train_dual_encoder",
]
