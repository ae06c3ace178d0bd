from kvledger.cache import Lease, Namespace, Pending, PromptCache
from kvledger.clock import ManualClock

SPACE = Namespace("weights", "tokenizer", "", "layout", "tenant")


def make(num_blocks=8, block_size=4, **kwargs):
    return PromptCache(num_blocks, block_size=block_size, bytes_per_block=64, clock=ManualClock(), **kwargs)


def serve(cache, tokens, **kw):
    lease = cache.acquire(SPACE, tokens, **kw)
    assert isinstance(lease, Lease)
    cache.commit(lease, tokens, len(tokens))
    cache.release(lease)
    return lease.reused


def test_p13():
    cache = make()
    assert serve(cache, range(12)) == 0
    assert serve(cache, range(12)) == 11
    assert serve(cache, range(12)) == 11
    assert serve(cache, range(20)) == 12
    assert serve(cache, [0, 1, 2, 3, 4, 5, 9, 9]) == 6
    assert serve(cache, range(20)) == 19
    p = cache.pool
    assert p.free + p.owned + p.ready + p.idle == 8


def test_pending():
    cache = make()
    a = cache.acquire(SPACE, range(12))
    assert isinstance(cache.acquire(SPACE, range(12)), Pending)
    cache.commit(a, range(12), 8)
    b = cache.acquire(SPACE, range(12))
    assert b.reused == 8
    cache.release(a)
    cache.release(b)
