"""Capacities as people write them, in tokens, and in blocks as a cache has them."""

from __future__ import annotations

from dataclasses import dataclass

from kvledger.errors import SimulationError

UNLIMITED = "unlimited"


@dataclass(frozen=True, slots=True)
class Capacity:
    """Tokens of KV that a cache, or one tier of it, has room for; None is without a limit."""

    tokens: int | None

    @classmethod
    def parse(cls, text: str) -> Capacity:
        """`65536` or `unlimited`. Raises `SimulationError`."""
        if text.strip() == UNLIMITED:
            return cls(None)
        try:
            tokens = int(text)
        except ValueError:
            tokens = 0
        if tokens <= 0:
            raise SimulationError(
                f"A capacity of {text!r} tokens cannot be: give a whole number above zero, or {UNLIMITED}."
            )
        return cls(tokens)

    def blocks(self, block_size: int) -> int | None:
        """Whole blocks that fit. A partial block takes the room of a full one, as in paged attention."""
        if self.tokens is None:
            return None
        if self.tokens < block_size:
            raise SimulationError(
                f"A capacity of {self.tokens} tokens holds no block of this trace, which has {block_size} tokens:"
                f" give at least {block_size}."
            )
        return self.tokens // block_size

    def __str__(self) -> str:
        return UNLIMITED if self.tokens is None else str(self.tokens)


def parse_tiers(text: str) -> tuple[Capacity, Capacity]:
    """`ram:65536,disk:unlimited` as the capacities of RAM and disk. Raises `SimulationError`."""
    named = dict(part.strip().partition(":")[::2] for part in text.split(","))
    if list(named) != ["ram", "disk"]:
        raise SimulationError(f"Tiers {text!r} cannot be: give ram and disk, as in ram:65536,disk:1048576.")
    return Capacity.parse(named["ram"]), Capacity.parse(named["disk"])
