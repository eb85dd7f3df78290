"""How this processor multiplies integers of eight bits."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from adacur.requirements import require

# Without instructions for it (VNNI), x86 processors add two products of eight bits in sixteen, and saturate. With this
# entry onnxruntime multiplies such weights as unsigned ones there, which is exact; elsewhere it changes nothing.
PRECISE = "session.x64quantprecision"

# One MatMulInteger of 8 inputs, unsigned, by weights of 127 in 8 rows and 16 columns.
_PRODUCT = (
    b'\x08\x07\x12\x00:\xd6\x01\n\x18\n\x01a\n\x01w\x12\x01y"\rMatMulInteger\x12\x01g*\x8c\x01\x08\x08\x08\x10\x10\x03B'
    b"\x01wJ\x80\x01" + bytes([127]) * 128 + b"Z\x13\n\x01a\x12\x0e\n\x0c\x08\x02\x12\x08\n\x02\x08\x01\n\x02\x08\x08b"
    b"\x13\n\x01y\x12\x0e\n\x0c\x08\x06\x12\x08\n\x02\x08\x01\n\x02\x08\x10B\x04\n\x00\x10\r"
)
_EXACT = 8 * 255 * 127


@functools.cache
def int8_products() -> str:
    """Either "exact products", "exact products, widened" where that takes `PRECISE`, or "saturating products".

    It is measured, once per process and in milliseconds: onnxruntime does not say which instructions it chose.
    """
    if _is_exact(precise=False):
        return "exact products"
    return "exact products, widened" if _is_exact(precise=True) else "saturating products"


def _is_exact(*, precise: bool) -> bool:
    onnxruntime = require("onnxruntime", extra="onnx")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    options.add_session_config_entry(PRECISE, "1" if precise else "0")
    session: Any = onnxruntime.InferenceSession(_PRODUCT, options, providers=["CPUExecutionProvider"])
    return bool((session.run(None, {"a": np.full((1, 8), 255, np.uint8)})[0] == _EXACT).all())
