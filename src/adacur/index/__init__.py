"""Anchor scores at rest: build, resume, store, verify, estimate; and the probes that recognise a scorer."""

from __future__ import annotations

from adacur.index.build import Progress, block_items_for, build_scores, locked, save_table
from adacur.index.checksums import write_checksums
from adacur.index.estimate import Encode, Estimate, estimate, time_encoder
from adacur.index.folder import COMPRESSED, IndexFolder, build_status, first_stage_folders, is_finished
from adacur.index.items import StoredItems
from adacur.index.manifest import (
    FORMAT,
    FORMAT_OF_VERSIONS,
    Manifest,
    Origin,
    Probe,
    home_of,
    read_manifest,
    write_manifest,
)
from adacur.index.mirror import place_named, stored_size
from adacur.index.object_store import index_url
from adacur.index.probes import Drift, DriftWarning, check_scorer, choose_probes
from adacur.index.table import AnchorTable
from adacur.index.updates import Update, WriteFirstStages, prune, updating
from adacur.index.verify import Problem, Report, verify
from adacur.index.workforce import Workforce

__all__ = [
    "COMPRESSED",
    "FORMAT",
    "FORMAT_OF_VERSIONS",
    "AnchorTable",
    "Drift",
    "DriftWarning",
    "Encode",
    "Estimate",
    "IndexFolder",
    "Manifest",
    "Origin",
    "Probe",
    "Problem",
    "Progress",
    "Report",
    "StoredItems",
    "Update",
    "Workforce",
    "WriteFirstStages",
    "block_items_for",
    "build_scores",
    "build_status",
    "check_scorer",
    "choose_probes",
    "estimate",
    "first_stage_folders",
    "home_of",
    "index_url",
    "is_finished",
    "locked",
    "place_named",
    "prune",
    "read_manifest",
    "save_table",
    "stored_size",
    "time_encoder",
    "updating",
    "verify",
    "write_checksums",
    "write_manifest",
]
