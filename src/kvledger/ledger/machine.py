"""What a request cost in machine time: a price per hour, split over its seconds and over the memory it held.

Why output costs more than input, and cached input almost nothing: prompt tokens are computed many at a time, so one
takes a small part of a pass over the weights; an output token takes a pass of its own; a cached token takes none, it
only occupies memory.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal

from kvledger.errors import InvalidRequestError
from kvledger.ledger.money import MILLION, quotient, times, total
from kvledger.ledger.receipt import Receipt

_PRICE = re.compile(r"(?P<usd>\d+(\.\d+)?)\s*/\s*(h|hour)")
_SECONDS_PER_HOUR = 3600


@dataclass(frozen=True, slots=True)
class MachinePrice:
    """US dollars per hour of the whole machine. `memory_share` is the part of it that its KV memory stands for, the
    rest is computing; the default is an assumption, a tenth."""

    usd_per_hour: Decimal
    memory_share: Decimal = Decimal("0.1")

    def __post_init__(self) -> None:
        if not (self.usd_per_hour.is_finite() and self.usd_per_hour > 0 and 0 <= self.memory_share < 1):
            raise ValueError(f"{self.usd_per_hour} dollars per hour, {self.memory_share} of it memory, is no price")

    @staticmethod
    def parse(text: str) -> MachinePrice:
        """Read `2.50/hour`; raises `InvalidRequestError` for anything else."""
        match = _PRICE.fullmatch(text.strip())
        if match is None or not Decimal(match["usd"]):
            raise InvalidRequestError(f"{text!r} is no price of a machine: write dollars per hour, like 2.50/hour.")
        return MachinePrice(Decimal(match["usd"]))


@dataclass(frozen=True, slots=True)
class MachineCost:
    """US dollars of machine time, to 12 decimal places. `memory` is None where the receipt does not say how large the
    pool was that it held memory in.

    The last three are US dollars per million tokens of that kind, None where there were none: computing and the share
    in the memory for `input` (tokens that were computed) and `output`, that share alone for `reused`.
    """

    prefill: Decimal
    decode: Decimal
    memory: Decimal | None
    input_per_million: Decimal | None
    reused_per_million: Decimal | None
    output_per_million: Decimal | None

    @property
    def total(self) -> Decimal | None:
        return None if self.memory is None else total([self.prefill, self.decode, self.memory])


def machine_cost(receipt: Receipt, price: MachinePrice) -> MachineCost:
    """What the machine's time and memory that a request took are worth.

    Seconds are the request's own, from admission to its last token. Where several run at once each is charged as if
    alone, so their sum is more than the machine's price: it is an upper bound.
    """
    compute = times(price.usd_per_hour, 1 - price.memory_share)
    prefill, decode = _over(receipt.prefill, compute), _over(receipt.decode, compute)
    memory = None
    if receipt.kv_byte_seconds == 0:
        memory = Decimal(0)
    elif receipt.kv_pool_bytes:
        rate = times(price.usd_per_hour, price.memory_share)
        memory = quotient(_over(receipt.kv_byte_seconds, rate), receipt.kv_pool_bytes)
    prompt, output = receipt.usage.split.prompt_tokens, receipt.usage.output
    held = None if memory is None else quotient(times(MILLION, memory), max(prompt + output, 1))

    def per_million(computing: Decimal, tokens: int) -> Decimal | None:
        if not tokens or held is None:
            return None
        return total([quotient(times(MILLION, computing), tokens), held])

    return MachineCost(
        prefill=prefill,
        decode=decode,
        memory=memory,
        input_per_million=per_million(prefill, prompt - receipt.reused_tokens),
        reused_per_million=per_million(Decimal(0), receipt.reused_tokens),
        output_per_million=per_million(decode, output),
    )


def _over(amount: float, usd_per_hour: Decimal) -> Decimal:
    return quotient(times(usd_per_hour, Decimal(repr(float(amount)))), _SECONDS_PER_HOUR)
