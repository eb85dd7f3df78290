"""First stages that the paper compares with: TF-IDF and one vector per token.

An index folder that has one opens after `adacur.first_stages.FIRST_STAGES.update(LAB_STAGES)`.
"""

from adacur.protocols import FirstStage
from adacur_lab.first_stages.multi_vector import MultiVector
from adacur_lab.first_stages.tfidf import TfIdf
from adacur_lab.first_stages.token_encoders import TokenEncoder, token_encoder

__all__ = ["LAB_STAGES", "MultiVector", "TfIdf", "TokenEncoder", "token_encoder"]

LAB_STAGES: dict[str, type[FirstStage]] = {"tfidf": TfIdf, "multi-vector": MultiVector}
