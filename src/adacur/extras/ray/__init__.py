"""Blocks of a build on a Ray cluster."""

from adacur.extras.ray.ray_executor import Ray, RayActors

__all__ = ["Ray", "RayActors"]
