"""The record of one request: built once, on whatever way the request ended, and never changed."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from decimal import Decimal
from hashlib import blake2b
from typing import Any

import msgspec

from kvledger.ledger.account import Account, Usage
from kvledger.ledger.bill import Bill
from kvledger.ledger.money import plain

VERSION = 1
"""Of the encoding. A reader refuses what it does not know."""

FINISH_REASONS = frozenset({"stop", "length", "capacity", "cancelled", "error"})
"""Why a request ended, in the engine's words; a request that was preempted and resumed ends as any other."""

_PERSON = b"kvl-receipt-1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """What one request was, used and cost. Times are in seconds, `at` since the Unix epoch (the request's start).

    `tenant` and `key` (its name, never the key) come from authentication. `model` is the name that was asked for and
    that rules and prices go by, `answered_by` the model that computed it; `provider` and `api` name the dialect.

    `account` is the rulebook's verdict, `usage` what the answer's usage said: one prompt, so one split. `reused_tokens`
    is what the machine itself did not have to compute again, as of the first admission, and `miss` why it was no more
    ("" where nothing was lost). `ttft` is None where no token came. `kv_byte_seconds` is the memory the request held,
    times how long; `kv_pool_bytes` the size of the pool that it held it in. `bill` says itself what is unknown.

    Raises `ValueError` if a law does not hold: the parts of the prompt sum to it, the machine reused at most all of it
    but the last token, nothing is negative, money is `Decimal`, the finish reason is one that is known.
    """

    id: str
    at: float
    provider: str
    api: str
    model: str
    answered_by: str
    account: Account
    usage: Usage
    reused_tokens: int
    queued: float
    prefill: float
    decode: float
    finish_reason: str
    bill: Bill
    tenant: str = ""
    key: str = ""
    miss: str = ""
    ttft: float | None = None
    kv_byte_seconds: float = 0.0
    kv_pool_bytes: int = 0
    message: str = ""

    def __post_init__(self) -> None:
        if not self.id:
            raise ValueError("a receipt needs the id of its request")
        split = self.usage.split
        if self.account.split != split:
            raise ValueError(f"receipt {self.id}: the account splits {self.account.split}, the usage says {split}")
        most = max(split.prompt_tokens - 1, 0)
        if not 0 <= self.reused_tokens <= most:
            raise ValueError(
                f"receipt {self.id}: {self.reused_tokens} tokens reused of a prompt of {split.prompt_tokens}:"
                f" it can be {most} at most, as one is always computed"
            )
        if self.finish_reason not in FINISH_REASONS:
            raise ValueError(f"receipt {self.id}: {self.finish_reason!r} is no finish reason")
        for name in ("at", "queued", "prefill", "decode", "ttft", "kv_byte_seconds", "kv_pool_bytes"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value >= 0):
                raise ValueError(f"receipt {self.id}: {name} is {value}, which cannot be")
        if not isinstance(self.bill, Bill):
            raise ValueError(f"receipt {self.id}: a bill is a Bill, which may say that the price is unknown")

    def encoded(self) -> bytes:
        """Canonical JSON: names in alphabetical order, money as plain decimal strings, no white space."""
        wire = msgspec.to_builtins(self, builtin_types=(Decimal,))
        for line in wire["bill"]["lines"]:
            for name in ("rate", "usd"):
                if line[name] is not None:
                    line[name] = plain(line[name])
        return _ENCODER.encode({"version": VERSION, **wire})

    @staticmethod
    def decoded(data: bytes) -> Receipt:
        """The receipt that was encoded; `ValueError` if this is none, of another version, or breaks a law."""
        wire: dict[str, Any] = msgspec.json.decode(data, type=dict[str, Any])
        version = wire.pop("version", None)
        if version != VERSION:
            raise ValueError(f"a receipt of version {version}: this program reads version {VERSION}")
        unknown = wire.keys() - {field.name for field in fields(Receipt)}
        if unknown:
            raise ValueError(f"a receipt does not have the fields {', '.join(sorted(unknown))}")
        return msgspec.convert(wire, Receipt)


def receipt_digest(encoded: bytes) -> str:
    """BLAKE2b-256 (RFC 7693) of an encoded receipt, in hexadecimal."""
    return blake2b(encoded, digest_size=32, person=_PERSON).hexdigest()


_ENCODER = msgspec.json.Encoder(order="sorted")
