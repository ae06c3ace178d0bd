"""A request as the audit keeps it: its prompt in parts that equal requests share, its time, and what was reported."""

from __future__ import annotations

from dataclasses import dataclass, replace

from kvledger.audit.record import Source
from kvledger.ledger.account import Split, Usage
from kvledger.providers.prompt import ProviderPrompt


@dataclass(slots=True)
class Request:
    """One request. `at` and `began` are seconds since the Unix epoch, and `timed` says whether the log has the former.

    `prompt` is None where no rulebook could read a body, and `missing` then says why; its tokens are an estimate. `ids`
    are the numbers of its parts: equal numbers are equal text, whatever mark it carries. `tokens` is the length of the
    prompt: the provider's own count, else the estimate, 0 where there is neither. `automatic` says that the body asks
    for caching at its top level. `conversation` is the log's own name, or one that `lineage` gave to requests which
    continue each other, and `index` the request's place in the order of time.
    """

    source: Source
    provider: str
    api: str
    model: str
    at: float
    began: float | None
    timed: bool
    key: str
    conversation: str
    prompt: ProviderPrompt | None
    ids: tuple[int, ...]
    usage: Usage | None
    tokens: int
    missing: str = ""
    automatic: bool = False
    index: int = 0

    def scaled(self) -> ProviderPrompt:
        """The prompt in the provider's tokens where it reported them; there must be one."""
        assert self.prompt is not None
        return self.prompt.scaled(self.tokens)

    def used(self, split: Split) -> Usage:
        """What would have been billed if the prompt had split like this."""
        return Usage(split) if self.usage is None else replace(self.usage, split=split, storage_token_seconds=0)
