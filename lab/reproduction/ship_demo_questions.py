"""Write the demo's questions with the best ten articles of each, by the exact scores of all 10,033. Wants a GPU.

    python lab/reproduction/ship_demo_questions.py --model CHECKPOINT [--questions FILE]

CHECKPOINT is a torch folder of ms-marco-MiniLM-L-12-v2 (`python -m adacur_lab.dequantise` makes one); FILE has a
question per line, by default those that ship already. They were written before any of them was searched.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np

import adacur
from adacur.data import wikivital
from adacur.records import Query
from adacur.scorers import TorchCrossEncoder

TARGET = Path(adacur.__file__).parent / "data" / "demo_questions.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--questions", type=Path)
    arguments = parser.parse_args()
    items = wikivital()
    if arguments.questions is None:
        questions = [one["question"] for one in json.loads(TARGET.read_text(encoding="utf-8"))]
    else:
        questions = arguments.questions.read_text(encoding="utf-8").split("\n")
    scorer = TorchCrossEncoder(arguments.model, max_item_tokens=192)
    shipped = []
    for question in filter(None, questions):
        scores = scorer.score([(Query("question", question), item) for item in items])
        shipped.append({"question": question, "best": [items[at].id for at in np.argsort(-scores)[:10]]})
    write(shipped)


def write(shipped: list[dict[str, object]]) -> None:
    """A question a line, so that a change can be read."""
    lines = ",\n ".join(json.dumps(one, ensure_ascii=False) for one in shipped)
    TARGET.write_text(f"[\n {lines}\n]\n", encoding="utf-8")


if __name__ == "__main__":
    main()
