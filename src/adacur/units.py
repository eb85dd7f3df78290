"""Seconds, bytes and rates in words."""

from __future__ import annotations


def duration(seconds: float) -> str:
    """Seconds as people say them."""
    if seconds < 0.1:
        return "under 0.1 s"
    if seconds < 100:
        return f"{seconds:.1f} s"
    if seconds < 6000:
        return f"{seconds / 60:.1f} min"
    return f"{seconds / 3600:,.1f} h"


def duration_range(low: float, high: float) -> str:
    """A range of seconds, in the unit of its upper end."""
    ends = duration(low), duration(high)
    if ends[0] == ends[1] or high < 0.1:
        return ends[1]
    if low < 0.05:
        return f"under {ends[1]}"
    units = ((3600, "h", 6000), (60, "min", 100), (1, "s", 0))
    size, unit = next((size, unit) for size, unit, least in units if high >= least)
    return f"{low / size:,.1f}–{high / size:,.1f} {unit}"


def megabytes(n_bytes: float) -> str:
    """Bytes as people say them."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if n_bytes >= size:
            return f"{n_bytes / size:,.1f} {unit}"
    return f"{n_bytes:,.0f} bytes"


def pace(pairs_per_second: float) -> str:
    """A rate with the digits that mean something."""
    return f"{pairs_per_second:,.{0 if pairs_per_second >= 100 else 1}f} pairs/s"
