"""Chat templates rendered in a process of their own: one from a stranger may loop for ever, or fill the memory."""

# Run as a script by `rendered_chats`, which imports it too: at the top only what takes no time.
from __future__ import annotations

import contextlib
import functools
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

SECONDS = 30.0
_BYTES = 4 * 2**30
_LONGEST = 2**15
_LONGEST_REASON = 1000

# The text, or None and why there is none.
Rendered = tuple[str | None, str]


def rendered_chats(template: str, chats: Sequence[Any], options: Mapping[str, Any]) -> list[Rendered]:
    """What a template makes of each chat, with these options; OSError where that could not be found out."""
    return _answers(json.dumps({"chats": chats, "options": {**options, "chat_template": template}}, default=str))


# Only answers are remembered: a process that was too slow, or was killed, may be neither the next time.
@functools.lru_cache(maxsize=64)
def _answers(asked: str) -> list[Rendered]:
    # -P: nothing is imported from the current folder. One thread: each more takes address space.
    command, single = [sys.executable or "", "-P", __file__], os.environ | {"OPENBLAS_NUM_THREADS": "1"}
    try:
        done = subprocess.run(
            command, input=asked.encode(), capture_output=True, timeout=SECONDS, env=single, check=False
        )
    except subprocess.TimeoutExpired:
        raise TimeoutError(f"it takes more than {SECONDS:g} s") from None
    if done.returncode:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        raise ChildProcessError(lines[-1][:_LONGEST_REASON] if lines else f"it ended its process, {done.returncode}")
    return [(text, why) for text, why in json.loads(done.stdout)]


def _render(chats: Sequence[Any], options: Mapping[str, Any]) -> list[Rendered]:
    from transformers.utils.chat_template_utils import render_jinja_template

    # Windows has no such limit, and macOS keeps none.
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (_BYTES, _BYTES))
    answers: list[Rendered] = []
    for chat in chats:
        try:
            texts, _ = render_jinja_template(conversations=[chat], **options)
            long = len(texts[0]) > _LONGEST
            answers.append((None, f"it makes {len(texts[0]):,} characters of a pair") if long else (texts[0], ""))
        except Exception as error:
            answers.append((None, str(error)[:_LONGEST_REASON] or type(error).__name__))
    return answers


if __name__ == "__main__":
    json.dump(_render(**json.load(sys.stdin)), sys.stdout)
