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
        self.reused_tokens: int | None = None
        """Of the prompt, at the first admission; None before it is known."""
        self.miss: Miss | None = None
        self.submitted = submitted
        self.admitted: float | None = None
        self.first_token: float | None = None
        self.last_token: float | None = None

    @property
    def tenant(self) -> str:
        return self.namespace.tenant

    @property
    def num_outputs(self) -> int:
        return len(self.tokens) - len(self.request.prompt.tokens)

    @property
    def num_uncomputed(self) -> int:
        """Tokens whose KV is missing: at least one, and its logits give the next token."""
        return len(self.tokens) - self.num_computed

    @property
    def is_loading(self) -> bool:
        """There is a lease, and what it reuses is still on its way: nothing can be computed."""
        return self.lease is not None and self.lease.loading is not None

    def admit(self, lease: Lease, now: float) -> None:
        """Hold `lease`; go on under it with `begin`, once nothing of it is loading."""
        self.lease = lease
        self.admitted = now if self.admitted is None else self.admitted

    def begin(self) -> None:
        """Go on where the lease's reuse ends."""
        assert self.lease is not None
        self.copies = self.lease.copies
        self.num_computed = self.lease.reused
        self._account(self.lease)

    def retire(self) -> None:
        """Let go of the lease, which was released, and of everything computed under it."""
        assert self.lease is not None
        self._account(self.lease)
        self.lease, self.copies, self.num_computed = None, (), 0

    def _account(self, lease: Lease) -> None:
        """What counts for the caller is the first admission, not what preemption repeats."""
        if self.reused_tokens is None:
            self.reused_tokens = lease.reused
            self.miss = lease.miss

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
            reused_tokens=self.reused_tokens or 0,
            output_tokens=self.num_outputs,
            queued=admitted - self.submitted,
            prefill=first - admitted,
            decode=last - first,
            miss=self.miss,
        )
