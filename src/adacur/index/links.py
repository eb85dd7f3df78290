"""An index folder holds files and folders of its own, and nothing that leads out of it."""

from __future__ import annotations

import os
from pathlib import Path

from adacur.core.errors import DamagedIndex

__all__ = ["check_inside", "check_no_links"]


def check_no_links(folder: Path) -> None:
    """Refuse a folder with a symbolic link, a pipe or a device in it: reading or writing one would reach elsewhere.

    The hub's cache keeps the files of a snapshot as links into its `blobs`; these are allowed.
    """
    root = folder.resolve()
    blobs = root.parent.parent / "blobs" if root.parent.name == "snapshots" else None
    waiting = [root]
    while waiting:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False) and not _is_junction(entry.path):
                        waiting.append(Path(entry.path))
                    elif not entry.is_file(follow_symlinks=False) and not _is_blob(entry, blobs):
                        raise DamagedIndex(
                            f"{entry.path} is a link, a pipe or a device. An index folder holds only files and folders "
                            "of its own. Replace it by what it stands for, or copy the index anew from its source."
                        )
        except (FileNotFoundError, NotADirectoryError):
            # Pruned while this looked; or there is no folder, which the caller reports.
            continue
        except DamagedIndex:
            raise
        except OSError as error:
            raise DamagedIndex(f"A folder of {folder} cannot be listed ({error}). Check its permissions.") from error


def check_inside(folder: Path, path: Path) -> None:
    """Refuse to touch what does not lie in a folder, whatever links lead to it."""
    root, parent = folder.resolve(), path.parent.resolve()
    if path.name in ("", "..") or not (parent == root or root in parent.parents):
        raise DamagedIndex(f"{path} does not lie in {folder}, and is left alone. Restore the folder from a copy.")


def _is_blob(entry: os.DirEntry[str], blobs: Path | None) -> bool:
    if blobs is None or not entry.is_symlink() or not entry.is_file():
        return False
    return Path(entry.path).resolve().parent == blobs


def _is_junction(path: str) -> bool:
    # Windows' other kind of link; Python 3.12 and later can tell it.
    isjunction = getattr(os.path, "isjunction", None)
    return bool(isjunction and isjunction(path))
