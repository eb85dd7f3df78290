"""Anchor scores at rest: build, resume, store, verify, estimate; and the probes that recognise a scorer."""

from __future__ import annotations

from adacur.index.build import Progress, block_items_for, build_scores, locked, save_table
from adacur.index.checksums import write_checksums
from adacur.index.estimate import Estimate, estimate
from adacur.index.folder import COMPRESSED, IndexFolder, first_stage_folders, is_finished
from adacur.index.items import StoredItems
from adacur.index.manifest import FORMAT, Manifest, Probe, read_manifest, write_manifest
from adacur.index.probes import Drift, DriftWarning, check_scorer, choose_probes
from adacur.index.table import AnchorTable
from adacur.index.verify import Problem, Report, verify

__all__ = [
    "COMPRESSED",
    "FORMAT",
    "AnchorTable",
    "Drift",
    "DriftWarning",
    "Estimate",
    "IndexFolder",
    "Manifest",
    "Probe",
    "Problem",
    "Progress",
    "Report",
    "StoredItems",
    "block_items_for",
    "build_scores",
    "check_scorer",
    "choose_probes",
    "estimate",
    "first_stage_folders",
    "is_finished",
    "locked",
    "read_manifest",
    "save_table",
    "verify",
    "write_checksums",
    "write_manifest",
]
