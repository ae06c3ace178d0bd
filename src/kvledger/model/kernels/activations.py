"""The rows that a linear kernel multiplies, in tiles of 16 tokens.

An int8 tile of `cols` columns, G = cols / 32 groups, is contiguous: quants int8 [G][16 tokens][32], float32 scales
[G][16], int32 negated sums of the quants [G][16], float32 scale * sum [G][16]. Quants lie in -127..127:
`rint(x * (127 / max|x|))`. A float32 tile is just [16 tokens][cols].
"""

from __future__ import annotations

from dataclasses import dataclass

from kvledger.model.kernels.emit import Emit, Value
from kvledger.model.kernels.panels import GROUP

TOKENS = 16


def tile_bytes(cols: int, int8: bool) -> int:
    """Bytes of one tile, a multiple of 64."""
    return cols * TOKENS + 3 * 4 * TOKENS * (cols // GROUP) if int8 else 4 * cols * TOKENS


@dataclass(frozen=True)
class Row:
    """Addresses inside the tile that holds one token; rows of the same tile differ by constants only.

    `groups` is the number of groups of a row (an IR value), `tile` the tile's address, `lane` the token's place in it.
    """

    e: Emit
    tile: Value
    lane: Value
    groups: Value
    int8: bool

    @classmethod
    def of(cls, e: Emit, rows: Value, token: Value, groups: Value, int8: bool) -> Row:
        """The row of token number `token` in the tiles that begin at `rows`."""
        size = e.times(groups, tile_bytes(GROUP, int8))
        tile = e.at(rows, e.b.mul(e.b.sdiv(token, e.i64(TOKENS)), size))
        return cls(e, tile, e.b.srem(token, e.i64(TOKENS)), groups, int8)

    def values(self, group: Value, later: int = 0) -> Value:
        """The group's 32 numbers of the token `later` places after this one."""
        e = self.e
        if self.int8:
            return e.at(self.tile, e.times(group, TOKENS * GROUP), e.times(self.lane, GROUP), later * GROUP)
        row = e.at(self.lane, later)
        return e.at(self.tile, e.b.mul(row, e.times(self.groups, 4 * GROUP)), e.times(group, 4 * GROUP))

    def scale(self, group: Value, later: int = 0) -> Value:
        """The group's float32 scale; int8 only, like the two below."""
        e = self.e
        facts = e.at(self.tile, e.times(self.groups, TOKENS * GROUP))
        return e.at(facts, e.times(group, 4 * TOKENS), e.times(self.lane, 4), 4 * later)

    def negated_sum(self, group: Value, later: int = 0) -> Value:
        """The group's int32 minus sum of quants."""
        return self.e.at(self.scale(group, later), self.e.times(self.groups, 4 * TOKENS))

    def scaled_sum(self, group: Value, later: int = 0) -> Value:
        """The group's float32 scale times sum of quants."""
        return self.e.at(self.scale(group, later), self.e.times(self.groups, 8 * TOKENS))
