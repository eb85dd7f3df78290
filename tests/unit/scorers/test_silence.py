"""Scorers that bring torch print nothing, in a process that prints whatever its libraries want to."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.unit.scorers.cross_encoders.tiny_models import tiny_emb, tiny_transformer

for library in ("torch", "transformers", "sentence_transformers", "onnxscript"):
    pytest.importorskip(library)

# What is not said because an earlier step silenced it for good would count as silence: each step leaves all as it was.
PROGRAM = """
import logging
import sys
from pathlib import Path

def done(step):
    from transformers.utils import logging as of_transformers
    assert of_transformers.get_verbosity() == of_transformers.WARNING, step
    assert of_transformers.is_progress_bar_enabled(), step
    root = logging.getLogger()
    assert not root.handlers and not root.filters and root.level == logging.WARNING, step
    assert root.manager.disable == logging.getLogger("torch.onnx").level == logging.NOTSET, step
    print(step, flush=True)

folder = Path(sys.argv[1])
from adacur.scorers import *
from adacur.extras.train import export_onnx, make_emb_cross_encoder, save_emb_cross_encoder
for style in ("bert", "roberta", "distilbert"):
    TorchCrossEncoder(folder / style).close()
    done(f"opened {style}")
tokenizer, module = make_emb_cross_encoder(folder / "roberta")
done("made [EMB]")
save_emb_cross_encoder(module, tokenizer, folder / "saved")
done("saved [EMB]")
TorchCrossEncoder(folder / "saved", device="cpu").close()
done("opened [EMB]")
export_onnx(folder / "emb", folder / "graph", int8=True)
done("exported")
SentenceTransformersScorer(str(folder / "bert"), device="cpu").close()
done("opened by sentence-transformers")
"""
STEPS = """opened bert
opened roberta
opened distilbert
made [EMB]
saved [EMB]
opened [EMB]
exported
opened by sentence-transformers
"""


def test_opening_making_saving_and_exporting_print_nothing_and_leave_logging_alone(tmp_path) -> None:
    for style in ("bert", "roberta", "distilbert"):
        tiny_transformer(tmp_path / style, style, layers=1)
    tiny_emb(tmp_path, layers=1)
    # One process for all, since each would import torch; what is said stands before the step that said it.
    command = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    assert done.stdout == STEPS
    assert done.returncode == 0
