"""An index folder is untrusted input: using one touches, imports, calls and contacts nothing outside it.

`ADACUR_FUZZ=2000` tries so many folders instead of the usual few.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import adacur
from tests.editing import Edited
from tests.living_world import Encoder, item, query, score

TRIES = int(os.environ.get("ADACUR_FUZZ", "40"))


def test_a_hostile_folder_reaches_nothing_outside_itself(tmp_path: Path) -> None:
    index = tmp_path / "pristine.adacur"
    items, anchors = [item(n) for n in range(20)], [query(n) for n in range(6)]
    with adacur.build(
        items, anchors, scorer=score, path=index, first=["bm25", "dense"], encoder=Encoder(), progress=False
    ) as built:
        Edited(built).add([item(n) for n in range(20, 24)])
        Edited(built).remove(["i3"])

    (temporary := tmp_path / "temporary").mkdir()
    done = subprocess.run(
        [sys.executable, "-m", "tests.properties.hostile_world", index, tmp_path / "world" / "sandbox", str(TRIES)],
        capture_output=True,
        text=True,
        env=os.environ
        | {"ADACUR_CACHE": str(tmp_path / "cache"), "TMPDIR": str(temporary), "PYTHONDONTWRITEBYTECODE": "1"},
    )

    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout)
    assert told["tries"] == TRIES
    for what in ("seen", "changed", "raw"):
        assert not told[what], f"{what}, {len(told[what])} in all:\n" + "\n".join(told[what][:20])
