"""Blocks of a build on a Ray cluster."""

from __future__ import annotations

from adacur.extras.ray.ray_executor import Ray, RayActors

__all__ = [
    "Ray",
    "RayActors",
]
