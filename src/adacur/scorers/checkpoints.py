"""Folders of transformers models: found, read without a word on the terminal, written whole or not at all."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from adacur.core.errors import FetchError, InputError, StorageFull
from adacur.core.extras import require

__all__ = ["check_is_fast", "checkpoint_folder", "load_classifier", "quiet", "written_whole"]

# What a folder may hold, and what it must, for a new model to take its place.
_MODEL_SUFFIXES = {".json", ".safetensors", ".bin", ".onnx", ".data", ".txt", ".model", ".md", ".jinja"}
_MODEL_FILES = ("config.json", "modules.json", "model.onnx")


def checkpoint_folder(name_or_folder: str | Path) -> Path:
    """The folder of a model; a hub model is fetched unless the hub's cache has it."""
    if Path(name_or_folder).is_dir():
        return Path(name_or_folder)
    hub = require("huggingface_hub", extra="torch")
    name, files = str(name_or_folder), ["*.json", "*.txt", "*.model", "*.safetensors"]
    try:
        folder = Path(hub.snapshot_download(name, allow_patterns=files))
        if not any(folder.glob("*.safetensors")):
            folder = Path(hub.snapshot_download(name, allow_patterns=[*files, "pytorch_model*.bin"]))
    except (OSError, ValueError) as error:
        raise FetchError(f"The model {name!r} is no folder here and could not be fetched: {error}") from error
    return folder


def load_classifier(folder: Path) -> tuple[Any, Any]:
    """Tokenizer and model of a cross-encoder whose head is a classifier with one label."""
    transformers = require("transformers", extra="torch")
    try:
        with quiet(transformers):
            tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
            labels = transformers.AutoConfig.from_pretrained(folder).num_labels
            if labels == 1:
                model, loading = transformers.AutoModelForSequenceClassification.from_pretrained(
                    folder, output_loading_info=True
                )
    except Exception as error:
        raise InputError(f"{folder} cannot be read as a transformers cross-encoder: {error}") from error
    if labels != 1:
        raise InputError(
            f"A cross-encoder gives one logit per pair; {folder} has {labels} labels. Classifiers with several labels "
            "and dual encoders cannot be used as scorers."
        )
    if loading["missing_keys"]:
        raise InputError(
            f"The checkpoint in {folder} lacks the weights {sorted(loading['missing_keys'])}, which would be random. "
            "It is not a cross-encoder."
        )
    check_is_fast(tokenizer, folder)
    return tokenizer, model


def check_is_fast(tokenizer: Any, folder: Path) -> None:
    """Refuse tokenizers that are Python alone: they cannot be asked without transformers."""
    if not hasattr(tokenizer, "backend_tokenizer"):
        raise InputError(f"A scorer needs a fast tokenizer (tokenizer.json); {folder} has {type(tokenizer).__name__}.")


@contextmanager
def quiet(transformers: Any) -> Iterator[None]:
    """Transformers without progress bars, and without reports of weights that nobody asked for."""
    logging = transformers.utils.logging
    shows_progress, verbosity = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if shows_progress:
            logging.enable_progress_bar()


@contextmanager
def written_whole(folder: Path) -> Iterator[Path]:
    """An empty folder that becomes `folder` when the block ends without an error, in place of an older model."""
    if folder.exists() and not _is_empty_or_a_model(folder):
        raise InputError(
            f"A model is written to a new folder, or in place of an older model; {folder} holds something else. "
            "Name another folder."
        )
    folder.parent.mkdir(parents=True, exist_ok=True)
    unfinished, replaced = (folder.with_name(f".{folder.name}.{os.getpid()}.{why}") for why in ("unfinished", "old"))
    for left_over in folder.parent.glob(f".{folder.name}.*.unfinished"):
        shutil.rmtree(left_over)
    unfinished.mkdir()
    try:
        yield unfinished
    except BaseException as error:
        shutil.rmtree(unfinished, ignore_errors=True)
        # Safetensors tells a full disk in words alone.
        if getattr(error, "errno", None) == errno.ENOSPC or "No space left" in str(error):
            raise StorageFull(f"The disk that holds {folder} is full; nothing was written. Free some space.") from error
        raise
    if folder.exists():
        folder.rename(replaced)
    unfinished.rename(folder)
    for left_over in folder.parent.glob(f".{folder.name}.*.old"):
        shutil.rmtree(left_over, ignore_errors=True)


def _is_empty_or_a_model(folder: Path) -> bool:
    files = [path for path in folder.rglob("*") if not path.is_dir()]
    return folder.is_dir() and (
        not files
        or (
            any((folder / name).is_file() for name in _MODEL_FILES)
            and all(path.suffix in _MODEL_SUFFIXES for path in files)
        )
    )
