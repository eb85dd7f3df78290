"""The Hugging Face hub: an index folder as a repository, and back."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from adacur import __version__
from adacur.core.errors import AdacurError, FetchError, IndexMismatch, InputError, NotAnIndex, StorageUnavailable
from adacur.core.extras import require
from adacur.index import COMPRESSED, IndexFolder, home_of
from adacur.index.blocks import SCORES
from adacur.index.copying import version_files
from adacur.index.database import DATABASE
from adacur.index.manifest import FIRST_MANIFEST, MANIFEST, VERSIONS
from adacur.index.object_store import refuse_url
from adacur.index.versions import EXACT, PARTS
from adacur.search import AnchorIndex, load
from adacur.search.tuned import TUNED

__all__ = ["from_pretrained", "push_to_hub"]

_CARD = "README.md"
# What an earlier push may have left in a repository; everything else there is somebody's own.
_OURS = {MANIFEST, FIRST_MANIFEST, DATABASE, SCORES, EXACT, COMPRESSED, TUNED, VERSIONS, PARTS, "first", "pt_meta.json"}
_NOT_A_CLAIM = {_CARD, ".gitattributes", "LICENSE", ".gitignore"}


def push_to_hub(
    index: AnchorIndex | str | Path,
    repo: str | Path,
    *,
    license: str | None = None,  # noqa: A002
    about: str | None = None,
    private: bool | None = None,
    revision: str | None = None,
    message: str | None = None,
    token: str | None = None,
    repo_type: str = "dataset",
) -> str:
    """Upload an index, or the folder of one, in one commit; returns the commit's address.

    `repo` is "owner/name", made if there is none; or a folder (a Path, or a text that begins with "/", "./", "../" or
    "~"), which is then written as the repository would be. Only what the current version is made of goes up, with a
    README.md that says what it is: `about` (Markdown) and `license` (an identifier of the hub's, such as
    "cc-by-sa-4.0") are yours to give. Files of an earlier push that are no longer needed are removed. `revision` is a
    branch, made if there is none. Everybody who can read the repository can read the items and anchor queries.
    """
    with _folder_of(index) as folder:
        title = Path(repo).name
        files: dict[str, Path | bytes] = {name: folder.path / name for name in version_files(folder)}
        # The version that is held, whatever becomes of the index meanwhile.
        files[MANIFEST] = (folder.path / MANIFEST).read_bytes()
        if home_of(folder.path) != folder.home:
            raise IndexMismatch(f"{folder.path} was changed just now. Push it again.")
        target = _as_folder(repo)
        where = str(repo if target is None else target)
        files[_CARD] = _card(folder, title=title, where=where, license_=license, about=about).encode()
        if target is not None:
            _write(files, target)
            return str(target)
        return _commit(
            files, str(repo), private=private, revision=revision, message=message, token=token, repo_type=repo_type
        )


def from_pretrained(
    repo: str | Path,
    *,
    revision: str | None = None,
    folder: str | Path | None = None,
    token: str | None = None,
    local_files_only: bool = False,
    repo_type: str = "dataset",
    scorer: Any = None,
    **options: Any,
) -> AnchorIndex:
    """Open an index of the hub, or a folder; `scorer` and `options` are those of `adacur.load`.

    `revision` pins a branch, a tag or a commit. It is kept in the hub's cache and cannot be changed there; an index
    that is to be changed is copied into a new `folder`. Like `adacur.load` this refuses a scorer that did not build
    the index, and opens one that is a function or a service only if it is given, or with `trust=True`.
    """
    if Path(repo).is_dir() or _as_folder(repo) is not None:
        if revision is not None or folder is not None:
            raise InputError(f"{repo} is a folder; revision and folder are for repositories of the hub.")
        return load(Path(repo).expanduser(), scorer=scorer, **options)
    hub = require("huggingface_hub", extra="hub")
    try:
        found = hub.snapshot_download(
            str(repo),
            repo_type=repo_type,
            revision=revision,
            token=token,
            local_files_only=local_files_only,
            # No file of an index is hidden, and one would have its scores read from a place that it names.
            ignore_patterns=[".*", "*/.*"],
            library_name="adacur",
            library_version=__version__,
        )
    except Exception as error:
        raise FetchError(f"{repo}{f' at {revision}' if revision else ''} cannot be fetched. {error}") from error
    if folder is not None:
        with _folder_of(found) as cached:
            _write({name: cached.path / name for name in version_files(cached)}, Path(folder))
        return load(folder, scorer=scorer, **options)
    # A snapshot is the commit that it is named after; whoever opens that next must find it.
    return load(found, scorer=scorer, **options).read_only()


@contextlib.contextmanager
def _folder_of(index: AnchorIndex | str | Path) -> Iterator[IndexFolder]:
    """The index in its folder, held while it is read; one in memory is saved for the time."""
    with tempfile.TemporaryDirectory() as temporary:
        path = index.path if isinstance(index, AnchorIndex) else Path(index)
        if path is None:
            assert isinstance(index, AnchorIndex)
            path = Path(temporary) / "index"
            index.save(path)
        refuse_url(path, "Pushing")
        folder = IndexFolder.open(path)
        try:
            yield folder
        finally:
            folder.release()


def _as_folder(repo: str | Path) -> Path | None:
    is_path = isinstance(repo, Path) or repo.startswith(("/", "./", "../", "~")) or os.path.isabs(repo)
    return Path(repo).expanduser() if is_path else None


def _write(files: dict[str, Path | bytes], target: Path) -> None:
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise IndexMismatch(f"{target} is in use already. Choose a new folder.")
    partial = target.with_name(f".{target.name}.{uuid.uuid4().hex}.partial")
    try:
        for name, content in files.items():
            file = partial / name
            file.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(content, bytes):
                file.write_bytes(content)
            else:
                shutil.copyfile(content, file)
        if target.exists():
            target.rmdir()
        os.replace(partial, target)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def _commit(
    files: dict[str, Path | bytes],
    repo: str,
    *,
    private: bool | None,
    revision: str | None,
    message: str | None,
    token: str | None,
    repo_type: str,
) -> str:
    hub = require("huggingface_hub", extra="hub")
    place = {"repo_id": repo, "repo_type": repo_type}
    try:
        api = hub.HfApi(token=token, library_name="adacur", library_version=__version__)
        api.create_repo(**place, private=private, exist_ok=True)
        if revision is not None:
            api.create_branch(**place, branch=revision, exist_ok=True)
        # Whatever is pushed by others meanwhile, the commit is made on what was looked at, or not at all.
        newest = api.repo_info(**place, revision=revision).sha
        there = set(api.list_repo_files(**place, revision=newest))
        if not there <= _NOT_A_CLAIM:
            _check_is_index(api, place, newest, there)
        gone = sorted(name for name in there - files.keys() if name.split("/")[0] in _OURS)
        operations = [
            *(
                hub.CommitOperationAdd(name, content if isinstance(content, bytes) else str(content))
                for name, content in files.items()
            ),
            *(hub.CommitOperationDelete(name) for name in gone),
        ]
        done = api.create_commit(
            **place,
            operations=operations,
            commit_message=message or "Upload an adacur index",
            revision=revision,
            parent_commit=newest,
        )
    except AdacurError:
        raise
    except Exception as error:
        raise StorageUnavailable(f"The index cannot be pushed to {repo}. {error}") from error
    return str(done.commit_url)


def _check_is_index(api: Any, place: dict[str, str], revision: str, there: set[str]) -> None:
    """Refuse to push into a repository of something else: files would be overwritten, and folders emptied."""
    if MANIFEST in there:
        # Others call a file of theirs so too.
        with contextlib.suppress(NotAnIndex):
            home_of(Path(api.hf_hub_download(**place, filename=MANIFEST, revision=revision)).parent)
            return
    raise IndexMismatch(
        f"{place['repo_id']} holds other files and no index: {', '.join(sorted(there - _NOT_A_CLAIM)[:3])} … "
        "Choose a repository of its own for an index."
    )


def _card(folder: IndexFolder, *, title: str, where: str, license_: str | None, about: str | None) -> str:
    """What the index is, for people and for the hub."""
    manifest, scorer = folder.manifest, folder.manifest.scorer
    if scorer is not None and scorer.source is not None and os.path.isabs(scorer.source):
        # A path of somebody's machine tells nobody anything.
        scorer = replace(scorer, source=None)
    exact, n_scores = folder.n_exact, manifest.n_items * manifest.n_anchors
    predicted = "" if exact == n_scores else f"; {exact:,} of {n_scores:,} are the scorer's own, the rest predicted"
    rows = {
        "items": f"{manifest.n_items:,}",
        "anchor queries": f"{manifest.n_anchors:,}",
        "scorer": "unknown" if scorer is None else str(scorer),
        "its weights": f"SHA-256 {scorer.weights} …" if scorer is not None and scorer.weights else "not known",
        "scores": f"{manifest.dtype}{predicted}",
        "first stages": ", ".join((*folder.first_names(), "random")),
        "version": f"{folder.version}, of {manifest.created}, by adacur {manifest.packages.get('adacur', '?')}",
    }
    front = [
        *([f"license: {json.dumps(license_)}"] if license_ else []),
        "tags:\n- adacur\n- cross-encoder\n- text-retrieval",
        "task_categories:\n- text-retrieval",
        "viewer: false",
    ]
    table = "\n".join(f"| {name} | {value} |" for name, value in rows.items())
    return f"""---
{chr(10).join(front)}
---

# {title}

{about or "An index for k-nearest-neighbour search with a cross-encoder."}

| | |
|---|---|
{table}

```python
import adacur

index = adacur.integrations.hub.from_pretrained({json.dumps(where)})
hits = index.search("your question", k=10, budget=100)
```

Made with adacur, which finds the best items under an expensive scorer within a budget of calls to it:
`pip install 'adacur[hub]'`.
"""
