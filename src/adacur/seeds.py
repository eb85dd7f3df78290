"""Randomness that belongs to a (seed, query, item), never to an order of events.

Every draw is a hash of the seed, the purpose, the query's id and the item's id. So an answer does not
depend on which queries share its batch, on the order of the items, or on the machine that holds them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np

from adacur.arrays import FloatArray, KeyArray


def stream_key(seed: int, *names: str) -> int:
    """A 64-bit key of a stream of draws, e.g. `stream_key(0, "first", query.id)`."""
    digest = hashlib.blake2b(digest_size=8)
    for part in (str(seed), *names):
        encoded = part.encode()
        digest.update(len(encoded).to_bytes(8, "little") + encoded)
    return int.from_bytes(digest.digest(), "little")


def item_keys(ids: Iterable[str]) -> KeyArray:
    """A 64-bit key per item id; computed once per collection."""
    # Straight into an array: a list of digests would take five times its memory.
    digests = np.fromiter((hashlib.blake2b(id_.encode(), digest_size=8).digest() for id_ in ids), dtype="S8")
    return digests.view("<u8").astype(np.uint64, copy=False)


def uniform(stream: int, keys: KeyArray) -> FloatArray:
    """One draw in (0, 1) per item key."""
    with np.errstate(over="ignore"):
        bits = _scramble(keys ^ _scramble(np.array([stream], dtype=np.uint64)))
    # 53 bits fill a float64 exactly; the half step keeps 0 and 1 out, so that log(-log(u)) stays finite.
    return ((bits >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53


def _scramble(bits: KeyArray) -> KeyArray:
    """SplitMix64's step and finaliser: every input bit reaches every output bit."""
    bits = bits + np.uint64(0x9E3779B97F4A7C15)
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))
