"""Acks with a key each: sorted, and cut into calls of the script."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np

from acker_redis.ledger.shards import Shards
from acker_redis.model import ids
from acker_redis.model.arrays import UInt64Array
from acker_redis.model.blocks import ROOTS_PER_CALL, Blocks

_LOOKUPS_PER_CALL, _LEAST_PER_CALL = 4000, 25
"""Each ack of a call looks up its member in every set of the dedup window."""


class KeyedPiece(NamedTuple):
    """Acks of one call, all of one shard.

    Attributes:
        shard: number of the shard.
        updates: their XOR per root, packed by block.
        keyed: root, key and value of each ack, packed.
        roots: distinct roots.
    """

    shard: int
    updates: bytes
    keyed: bytes
    roots: UInt64Array


@dataclass(frozen=True)
class KeyedAcks:
    """Acks by one component, or without component, of which each has a key. Pairs of root and key are distinct.

    Attributes:
        roots: root of each ack.
        keys: key of each ack.
        vals: value of each ack.
        component: name of the component.
    """

    roots: UInt64Array
    keys: UInt64Array
    vals: UInt64Array
    component: str | None

    @classmethod
    def distinct(cls, roots: UInt64Array, keys: UInt64Array, vals: UInt64Array, component: str | None) -> Self:
        """Sort acks by block. The first of those with equal root and key counts."""
        order = np.lexsort((keys, roots, roots & np.uint64(ids.BLOCK_MASK)))
        roots, keys, vals = roots[order], keys[order], vals[order]
        is_first = np.ones(len(roots), np.bool_)
        is_first[1:] = (roots[1:] != roots[:-1]) | (keys[1:] != keys[:-1])
        return cls(roots[is_first], keys[is_first], vals[is_first], component)

    def pieces(self, shards: Shards) -> Iterator[KeyedPiece]:
        """Cut the acks into calls. The acks of a root may be in several calls, because each has its own key."""
        lookups = shards.config.num_buckets + 1
        per_call = max(_LEAST_PER_CALL, min(ROOTS_PER_CALL, _LOOKUPS_PER_CALL // lookups))
        for shard, of_shard in enumerate(shards.rows_by_shard(self.roots)):
            for start in range(0, len(of_shard), per_call):
                rows = of_shard[start : start + per_call]
                roots, vals = self.roots[rows], self.vals[rows]
                blocks = Blocks.from_roots(roots, vals, "xor")
                keyed = np.stack([roots, self.keys[rows], vals], axis=1).astype(">u8").tobytes()
                yield KeyedPiece(shard, blocks.packed()[0], keyed, blocks.roots)
