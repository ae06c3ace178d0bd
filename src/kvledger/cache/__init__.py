"""The prompt cache: reuse across requests that is exact, safe, measured, and explains itself.

How an engine uses it, on one thread:

    lease = cache.acquire(namespace, tokens, reserve=..., segments=..., marks=...)
    # None: does not fit now, try again when something was released. Never, if not cache.fits(len(tokens) + output).
    # OverQuota: the same, but only a release of the same tenant helps.
    # Pending: a running lease is about to write the next block of this prompt; try again after its next commit.
    # All three leave everything as it was and are not counted.
    cache.receive(lease)                          # only with a lower tier: between steps, until it is True
    for copy in lease.copies:                     # before the first forward pass
        pool.copy_block(copy.src, copy.dst)       # the first copy.num_tokens positions are what matters
    # compute positions lease.reused .. len(tokens) - 1 (at least one), writing KV into lease.table
    cache.commit(lease, tokens, num_written)      # after each forward pass, generated tokens included
    cache.extend(lease, num_tokens)               # False: nothing left to evict, preempt somebody
    cache.release(lease)                          # on every path, preemption included; twice does no harm
    cache.acquire(..., again=True)                # after preemption: same as above, but not counted again

`lease.reused` is at most `len(tokens) - 1`; `lease.miss` says why the rest was not reused. Blocks below `lease.reused`
are shared and never written, except that a last block that was copied or taken over belongs to the lease alone. A
released lease has an empty table. What a lease has committed stays cached until it expires (`ttl`), is evicted
(`policy`) or is cleared.

With a lower tier, `PromptCache(..., lower=LowerTier(DiskTier(...), read_block=pool.read_block,
write_block=pool.write_block))`: if `lower.rates` say that loading is cheaper than computing, a lease comes with a
`loading`, and its blocks are filled while others go on. Evicted blocks go down, `cache.persist(limit)`, called between
steps, sends others down before a crash takes them, and `cache.close()` the rest.

`cache.pool` has the counts of blocks by state, `cache.counters` what happened so far, `cache.events` every change of
the resident set, `outline.outline(cache, now)` a tree to look at, and `invariants.check(cache)` makes sure of it all.
"""

from kvledger.cache.lease import Copy, Lease, OverQuota, Pending
from kvledger.cache.miss import Miss, MissReason
from kvledger.cache.namespace import Namespace
from kvledger.cache.prompt_cache import PromptCache

__all__ = ["Copy", "Lease", "Miss", "MissReason", "Namespace", "OverQuota", "Pending", "PromptCache"]
