"""One request on its way through the engine."""

from __future__ import annotations

from collections.abc import Callable

from kvledger.cache import Copy, Lease, Miss, Namespace
from kvledger.engine.output import OutputText
from kvledger.engine.request import Event, Request, Usage
from kvledger.engine.sampler import Sampler

Sink = Callable[[list[Event]], None]


class Sequence:
    """The tokens of one request, how far their KV is computed, and the lease that holds it.

    `tokens` is the prompt and then the output. KV of `tokens[:num_computed]` is in the pool through `lease`; both go
    back to nothing on preemption, and nothing else does.
    """

    def __init__(
        self, request: Request, namespace: Namespace, sampler: Sampler, text: OutputText, sink: Sink, submitted: float
    ) -> None:
        self.request = request
        self.namespace = namespace
        self.sampler = sampler
        self.text = text
        self.sink = sink
        self.number = 0
        """Order of arrival, given by the scheduler."""
        self.tokens = list(request.prompt.tokens)
        self.num_computed = 0
        self.lease: Lease | None = None
        self.copies: tuple[Copy, ...] = ()
        """Block copies still to be made before the first forward pass under this lease."""
        self.reused_tokens = 0
        self.miss: Miss | None = None
        self.submitted = submitted
        self.admitted: float | None = None
        self.first_token: float | None = None
        self.last_token: float | None = None

    @property
    def num_outputs(self) -> int:
        return len(self.tokens) - len(self.request.prompt.tokens)

    @property
    def num_uncomputed(self) -> int:
        """Tokens whose KV is missing: at least one, and its logits give the next token."""
        return len(self.tokens) - self.num_computed

    def admit(self, lease: Lease, now: float) -> None:
        """Go on under `lease`. What counts for the caller is the first admission, not what preemption repeats."""
        self.lease = lease
        self.copies = lease.copies
        self.num_computed = lease.reused
        if self.admitted is None:
            self.admitted = now
            self.reused_tokens = lease.reused
            self.miss = lease.miss

    def retire(self) -> Lease | None:
        """Let go of the lease, which the caller must release, and of everything computed under it."""
        lease, self.lease, self.copies, self.num_computed = self.lease, None, (), 0
        return lease

    def append(self, token: int, now: float) -> None:
        """Add a sampled token."""
        self.tokens.append(token)
        self.first_token = now if self.first_token is None else self.first_token
        self.last_token = now

    def usage(self, now: float) -> Usage:
        """Counts and times up to `now`, whatever stage was reached."""
        admitted = now if self.admitted is None else self.admitted
        first = now if self.first_token is None else self.first_token
        last = first if self.last_token is None else self.last_token
        return Usage(
            prompt_tokens=len(self.request.prompt.tokens),
            reused_tokens=self.reused_tokens,
            output_tokens=self.num_outputs,
            queued=admitted - self.submitted,
            prefill=first - admitted,
            decode=last - first,
            miss=self.miss,
        )
