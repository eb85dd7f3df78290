"""Anchor scores at rest: build, resume, change, verify; and the probes that recognise a scorer.

Where to change what: `build_blocks` makes an index, or goes on with one, `scored_parts` scores block by block
(`executor` says where, `estimate` what it costs, `progress` reports). On disk: `manifest`, `database` and
`items` (SQLite), `blocks` (arrays), `model_file` (the model), `writing` (locks, atomic writes). `folder` opens
a version, which `parts` puts together; `versions` keeps it while it is read; `edit` has
the changes of an index, of which `new_version` makes one.
"""

from __future__ import annotations

from adacur.store.anchor_table import AnchorTable
from adacur.store.build_blocks import build_scores, save_table
from adacur.store.edit import Change, Edit, editing
from adacur.store.estimate import Estimate, estimate
from adacur.store.executor import On
from adacur.store.folder import IndexFolder, build_status, first_stage_folders, is_finished
from adacur.store.manifest import Manifest, Origin, home_of, read_manifest, write_manifest
from adacur.store.probes import Drift, DriftWarning, check_scorer, drift_now
from adacur.store.progress import Progress
from adacur.store.verify import verify
from adacur.store.versions import MODEL, prune
from adacur.store.writing import locked, write_checksums

__all__ = [
    "MODEL",
    "AnchorTable",
    "Change",
    "Drift",
    "DriftWarning",
    "Edit",
    "Estimate",
    "IndexFolder",
    "Manifest",
    "On",
    "Origin",
    "Progress",
    "build_scores",
    "build_status",
    "check_scorer",
    "drift_now",
    "editing",
    "estimate",
    "first_stage_folders",
    "home_of",
    "is_finished",
    "locked",
    "prune",
    "read_manifest",
    "save_table",
    "verify",
    "write_checksums",
    "write_manifest",
]
