"""The Hugging Face hub: an index folder as a repository, and back."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from adacur import __version__
from adacur.core.errors import AdacurError, FetchError, IndexMismatch, NotAnIndex, StorageUnavailable
from adacur.core.extras import require
from adacur.index import IndexFolder, home_of
from adacur.index.copying import TOP, version_files
from adacur.index.manifest import MANIFEST
from adacur.index.object_store import refuse_url
from adacur.search import AnchorIndex, load

_CARD = "README.md"
_NOT_A_CLAIM = {_CARD, ".gitattributes", "LICENSE", ".gitignore"}


def push_to_hub(
    index: AnchorIndex | str | Path,
    repo: str,
    *,
    license: str | None = None,  # noqa: A002
    about: str | None = None,
    private: bool | None = None,
    revision: str | None = None,
    message: str = "Upload an adacur index",
    token: str | None = None,
) -> str:
    """Upload an index, or the folder of one, in one commit; returns the commit's address.

    Only the files of the current version go up, with a README.md that describes it; files of an earlier push that are
    no longer needed are removed. Everyone who can read the repository can read the items and anchor queries.

    - `repo`: "owner/name" of a dataset repository, made if it does not exist; `revision`: a branch, likewise;
    - `about`: Markdown for the README.md; `license`: an identifier of the hub's, such as "cc-by-sa-4.0";
    - `private`, `message`, `token`: of the repository, of the commit, of the user.
    """
    hub = require("huggingface_hub", extra="hub")
    place = {"repo_id": repo, "repo_type": "dataset"}
    with _folder_of(index) as folder:
        files: dict[str, str | bytes] = {name: str(folder.path / name) for name in version_files(folder)}
        # The manifest of the version that is held, whatever happens to the index meanwhile.
        files[MANIFEST] = (folder.path / MANIFEST).read_bytes()
        if home_of(folder.path) != folder.home:
            raise IndexMismatch(f"{folder.path} was changed just now. Push it again.")
        files[_CARD] = _card(folder, repo=repo, license_=license, about=about).encode()
        try:
            api = hub.HfApi(token=token, library_name="adacur", library_version=__version__)
            api.create_repo(**place, private=private, exist_ok=True)
            if revision is not None:
                api.create_branch(**place, branch=revision, exist_ok=True)
            # If others push meanwhile, the commit is refused rather than made on files that were not looked at.
            newest = api.repo_info(**place, revision=revision).sha
            there = set(api.list_repo_files(**place, revision=newest))
            if not there <= _NOT_A_CLAIM:
                _check_is_index(api, place, newest, there)
            # What an earlier push may have left; other files in the repository belong to others.
            unused = sorted(name for name in there - files.keys() if name.split("/")[0] in TOP)
            commit = api.create_commit(
                **place,
                operations=[
                    *(hub.CommitOperationAdd(name, content) for name, content in files.items()),
                    *(hub.CommitOperationDelete(name) for name in unused),
                ],
                commit_message=message,
                revision=revision,
                parent_commit=newest,
            )
        except AdacurError:
            raise
        except Exception as error:
            raise StorageUnavailable(f"The index cannot be pushed to {repo}. {error}") from error
    return str(commit.commit_url)


def from_pretrained(
    repo: str,
    *,
    revision: str | None = None,
    folder: str | Path | None = None,
    token: str | None = None,
    local_files_only: bool = False,
    **options: Any,
) -> AnchorIndex:
    """Open an index of the hub; `options` (scorer, encoder, trust …) are those of `adacur.load`.

    It lies in the hub's cache and cannot be changed there. Like `adacur.load` this refuses a scorer that did not build
    the index, and opens one that is a function or a service only if it is given, or with `trust=True`.

    - `revision`: a branch, a tag or a commit;
    - `folder`: a new folder to fetch the index into, where it can be changed;
    - `token`, `local_files_only`: as in `huggingface_hub`.
    """
    hub = require("huggingface_hub", extra="hub")
    if folder is not None and Path(folder).exists() and any(Path(folder).iterdir()):
        raise IndexMismatch(f"{folder} is in use already. Choose a new folder.")
    try:
        snapshot = hub.snapshot_download(
            repo,
            repo_type="dataset",
            revision=revision,
            token=token,
            local_files_only=local_files_only,
            local_dir=folder,
            # No file of an index is hidden, and a hidden one could have its scores read from elsewhere.
            ignore_patterns=[".*", "*/.*"],
            library_name="adacur",
            library_version=__version__,
        )
    except Exception as error:
        raise FetchError(f"{repo}{f' at {revision}' if revision else ''} cannot be fetched. {error}") from error
    index = load(snapshot, **options)
    # A snapshot in the cache is named after its commit, so it must not change.
    index.is_read_only = folder is None
    return index


@contextlib.contextmanager
def _folder_of(index: AnchorIndex | str | Path) -> Iterator[IndexFolder]:
    """The index in its folder, held while it is read; one in memory is saved to a temporary one."""
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


def _check_is_index(api: Any, place: dict[str, str], revision: str, there: set[str]) -> None:
    """Refuse to push into a repository of something else: files would be overwritten, and folders emptied."""
    if MANIFEST in there:
        # Other tools use this file name too.
        with contextlib.suppress(NotAnIndex):
            home_of(Path(api.hf_hub_download(**place, filename=MANIFEST, revision=revision)).parent)
            return
    raise IndexMismatch(
        f"{place['repo_id']} holds other files and no index: {', '.join(sorted(there - _NOT_A_CLAIM)[:3])} … "
        "Choose a repository for this index alone."
    )


def _card(folder: IndexFolder, *, repo: str, license_: str | None, about: str | None) -> str:
    """What the index is, for people and for the hub."""
    manifest, scorer = folder.manifest, folder.manifest.scorer
    if scorer is not None and scorer.source is not None and os.path.isabs(scorer.source):
        # A path of the author's machine means nothing to readers.
        scorer = replace(scorer, source=None)
    exact, n_scores = folder.n_exact, manifest.n_items * manifest.n_anchors
    predicted = "" if exact == n_scores else f"; {exact:,} of {n_scores:,} are exact, the rest predicted"
    rows = {
        "items": f"{manifest.n_items:,}",
        "anchor queries": f"{manifest.n_anchors:,}",
        "scorer": "unknown" if scorer is None else str(scorer),
        "its weights": f"SHA-256 {scorer.weights} …" if scorer is not None and scorer.weights else "not known",
        "scores": f"{manifest.dtype}{predicted}",
        "first stages": ", ".join((*folder.first_names(), "random")),
        "version": f"{folder.version}, of {manifest.created}, by adacur {manifest.packages.get('adacur', '?')}",
    }
    table = "\n".join(f"| {name} | {value} |" for name, value in rows.items())
    front = f"license: {json.dumps(license_)}\n" if license_ else ""
    return f"""---
{front}tags: [adacur, cross-encoder, text-retrieval]
task_categories: [text-retrieval]
viewer: false
---

# {repo.rpartition("/")[2]}

{about or "An index for k-nearest-neighbour search with a cross-encoder."}

| | |
|---|---|
{table}

```python
from adacur.integrations.hub import from_pretrained

index = from_pretrained({json.dumps(repo)})
hits = index.search("your question", k=10, budget=100)
```

Made with adacur, which finds the best items under an expensive scorer within a budget of calls to it:
`pip install 'adacur[hub]'`.
"""
