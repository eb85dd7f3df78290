"""Files of an index folder: written whole, synced, locked against other writers, with checksums and without links."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import shutil
import sqlite3
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

from adacur.data.stored import read_json
from adacur.errors import AdacurError, DamagedIndex, IndexFolderError, IndexLocked, InputError, StorageFull
from adacur.names import STORES, WITHOUT_CREDENTIALS, named
from adacur.spelling import did_you_mean

LOCK = "build.lock"
CHECKSUMS = "checksums.json"
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)


def folder_at(path: str | Path) -> Path:
    """The path of an index folder; a URL, which pathlib would make a folder of, is refused."""
    if match := re.match(r"([A-Za-z][A-Za-z0-9+.-]+):/+", str(path)):
        # A scheme has two letters or more; one letter is a drive. Of two slashes pathlib leaves one.
        url = f"{match[1]}://{str(path)[match.end() :]}"
        known = ", ".join(f"{name}://" for name in STORES)
        shown = named(WITHOUT_CREDENTIALS)(url)
        raise InputError(
            f"An index lies in a folder; got {shown!r}. Copy it into one. A URL names a collection of an engine, and "
            f"begins with {known}.{did_you_mean(match[1], STORES)}"
        )
    return Path(path)


def write_atomically(file: Path, content: str | bytes | memoryview) -> None:
    """Write a file so that a crash leaves the old one or the new one, never half of it."""
    partial = file.with_name(f"{file.name}.partial")
    try:
        with partial.open("wb") as stream:
            stream.write(content.encode() if isinstance(content, str) else content)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(partial, file)
    except BaseException:
        with contextlib.suppress(OSError):
            partial.unlink()
        raise
    sync_path(file.parent)


def sync_path(path: Path) -> None:
    """Make a file's content, or a folder's entries, survive a power cut."""
    if os.name == "nt" and path.is_dir():
        return  # Windows syncs folder entries itself and cannot open a folder.
    descriptor = os.open(path, os.O_RDONLY if os.name != "nt" else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_tree(folder: Path) -> None:
    """Make a folder with all files in it survive a power cut."""
    for path in (*folder.rglob("*"), folder):
        sync_path(path)


def is_in_use(folder: Path) -> bool:
    """Whether something lies there that a new folder would have to replace."""
    return folder.exists() and (not folder.is_dir() or any(folder.iterdir()))


@contextlib.contextmanager
def made_whole(folder: Path, *, replacing: bool = False) -> Iterator[Path]:
    """Where to write a folder that is seen under its name only when all of it is there, also after a power cut.

    An empty folder of this name gives way, and with `replacing` any.
    """
    unfinished, earlier = (folder.with_name(f".{folder.name}.{uuid.uuid4().hex}.unfinished") for _ in range(2))
    try:
        yield unfinished
        sync_tree(unfinished)
        if folder.exists() and replacing:
            # Deleted last: where that is interrupted, the new folder is there.
            folder.rename(earlier)
        elif folder.exists():
            folder.rmdir()
        os.replace(unfinished, folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
        if earlier.exists() and not folder.exists():
            earlier.rename(folder)
    shutil.rmtree(earlier, ignore_errors=True)
    sync_path(folder.parent)


def remove_unfinished(home: Path, name: str) -> None:
    """Remove what an interrupted `made_whole` left of a folder of this name: it may be as large as the folder."""
    for left_over in home.glob(f".{name}.*.unfinished"):
        shutil.rmtree(left_over)


@contextlib.contextmanager
def locked(folder: Path, *, wait: float = 0.0) -> Iterator[bool]:
    """Hold a folder against other writers; yields whether it was created for this.

    A process that holds it already is waited for at most `wait` seconds. The kernel releases the lock when its holder
    dies, however it dies.
    """
    from filelock import FileLock, Timeout

    try:
        created = not folder.exists()
        folder.mkdir(parents=True, exist_ok=True)
        # The lock is opened for writing, and what follows writes beside it.
        check_no_links(folder)
        sync_path(folder.parent)
        lock = FileLock(folder / LOCK)
        lock.acquire(timeout=wait)
    except AdacurError:
        raise
    except Timeout:
        raise IndexLocked(
            f"Another process is writing to {folder}, which is as it was. Try again when it has finished, or choose "
            "another path."
        ) from None
    except OSError as error:
        if is_full(error):
            raise StorageFull(f"The disk that holds {folder} is full; nothing was written. Free some space.") from error
        raise IndexFolderError(
            f"{folder} cannot be written to: {error.strerror or error}. It is as it was. Check the path and its "
            "permissions, or choose another."
        ) from error
    try:
        yield created
    finally:
        lock.release()


@contextlib.contextmanager
def full_disk_reported(folder: Path, safe: Callable[[], str], *, what: str = "build") -> Iterator[None]:
    """Report a full disk as such, with what is `safe`, and a database that fails in another way."""
    try:
        yield
    except (OSError, sqlite3.Error) as error:
        if is_full(error):
            raise StorageFull(
                f"The disk that holds {folder} is full; {safe()}. Free some space and run the same {what} again: "
                "what is stored is not paid for twice."
            ) from error
        if isinstance(error, sqlite3.Error):
            raise IndexFolderError(f"The database of {folder} cannot be used: {error}.") from error
        raise


@contextlib.contextmanager
def damage_reported(what: str, remedy: str = "Restore it from a copy.") -> Iterator[None]:
    """Report whatever reading damaged files raises as damage to `what`."""
    try:
        yield
    except AdacurError:
        raise
    except (OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, MemoryError) as error:
        raise DamagedIndex(f"{what} cannot be read ({error}). {remedy}") from error


def is_full(error: BaseException | None) -> bool:
    """Whether an error means that the disk is full."""
    if isinstance(error, sqlite3.Error):
        return getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL
    # Numpy reports the bytes it could not write, and copying a tree the words, without an error number.
    words = ("requested and", *(os.strerror(number) for number in _NO_SPACE))
    return isinstance(error, OSError) and (
        isinstance(error, StorageFull) or error.errno in _NO_SPACE or any(some in str(error) for some in words)
    )


def check_no_links(folder: Path) -> None:
    """Refuse a folder with a symbolic link, a pipe or a device in it: reading or writing one would reach elsewhere.

    The Hugging Face hub's cache stores the files of a snapshot as links into its `blobs`; these are allowed.
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
                            f"{entry.path} is a link, a pipe or a device. An index folder must hold only files and "
                            "folders. Replace it by what it stands for, or copy the index again from its source."
                        )
        except (FileNotFoundError, NotADirectoryError):
            # Pruned meanwhile; or there is no folder, which the caller reports.
            continue
        except DamagedIndex:
            raise
        except OSError as error:
            raise DamagedIndex(f"A folder of {folder} cannot be listed ({error}). Check its permissions.") from error


def check_inside(folder: Path, path: Path) -> None:
    """Refuse to touch what does not lie in a folder, whatever links lead to it."""
    root, parent = folder.resolve(), path.parent.resolve()
    if path.name in ("", "..") or not (parent == root or root in parent.parents):
        raise DamagedIndex(f"{path} does not lie in {folder}, and was not touched. Restore the folder from a copy.")


def _is_blob(entry: os.DirEntry[str], blobs: Path | None) -> bool:
    if blobs is None or not entry.is_symlink() or not entry.is_file():
        return False
    return Path(entry.path).resolve().parent == blobs


def _is_junction(path: str) -> bool:
    # Windows' other kind of link; Python 3.12 and later can tell.
    isjunction = getattr(os.path, "isjunction", None)
    return bool(isjunction and isjunction(path))


def write_checksums(folder: Path) -> None:
    """Remember what every file in the folder holds."""
    digests = {
        file.relative_to(folder).as_posix(): digest_file(file) for file in sorted(folder.rglob("*")) if file.is_file()
    }
    (folder / CHECKSUMS).write_text(json.dumps(digests, indent=1), encoding="utf-8")


def check_files(folder: Path) -> Iterator[tuple[str, str]]:
    """(file, what is wrong) for each file that is not as it was remembered."""
    try:
        digests = dict(read_json(folder / CHECKSUMS))
        if outside := [name for name in digests if not _is_within(name)]:
            raise ValueError(f"it names {outside[0]!r}, which does not lie in the folder")
    except (OSError, ValueError, TypeError) as error:
        yield CHECKSUMS, f"it cannot be read: {error}"
        return
    for name, digest in digests.items():
        try:
            if digest_file(folder / name) != digest:
                yield name, "its content is not what was written"
        except OSError as error:
            yield name, f"it cannot be read: {error}"


def _is_within(name: object) -> bool:
    return isinstance(name, str) and not (set(name) & set("\\:\0") or {"", ".", ".."} & set(name.split("/")))


def digest_file(file: Path) -> str:
    """The SHA-256 of a file."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
