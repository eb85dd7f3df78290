"""Anchor scores at rest: build, resume, change, verify, copy; and the probes that recognise a scorer.

Where to change what: `build` scores block by block (`source` compares with what a folder holds, `workers` says where,
`estimate` what it costs, `progress` reports), `sparse` scores a share of the pairs. On disk: `manifest`, `database`
and `items` (SQLite), `blocks` (Zarr), `compressed` (features), `files` (locks, atomic writes). `folder` opens a
version, `versions` puts one together from parts, and deletes old ones, `updates` makes a new one. `copying` and
`object_store` go to S3.
"""

from __future__ import annotations

from adacur.index.build import build_scores, save_table
from adacur.index.estimate import Estimate, estimate
from adacur.index.files import locked, write_checksums
from adacur.index.folder import IndexFolder, build_status, first_stage_folders, is_finished
from adacur.index.manifest import Manifest, Origin, home_of, read_manifest, write_manifest
from adacur.index.object_store import index_url
from adacur.index.probes import Drift, DriftWarning, check_scorer, drift_now
from adacur.index.progress import Progress, ScoringBar
from adacur.index.sparse import Sparse
from adacur.index.table import AnchorTable
from adacur.index.updates import Update, updating
from adacur.index.verify import verify
from adacur.index.versions import COMPRESSED, prune
from adacur.index.workers import On

__all__ = [
    "COMPRESSED",
    "AnchorTable",
    "Drift",
    "DriftWarning",
    "Estimate",
    "IndexFolder",
    "Manifest",
    "On",
    "Origin",
    "Progress",
    "ScoringBar",
    "Sparse",
    "Update",
    "build_scores",
    "build_status",
    "check_scorer",
    "drift_now",
    "estimate",
    "first_stage_folders",
    "home_of",
    "index_url",
    "is_finished",
    "locked",
    "prune",
    "read_manifest",
    "save_table",
    "updating",
    "verify",
    "write_checksums",
    "write_manifest",
]
