"""What a prompt cache of a given size would have held of a recorded trace.

    trace = read_trace(path)
    run = simulate(trace, Setup(ram_blocks=1000, policy="lfu"))    # one cache
    score(trace, run.found != MISS)
    Curve.of(trace).at(1000)                                       # LRU, every size at once

Policies, TTL and tiers run in the real `cache/` with a manual clock. LRU alone also has a shortcut, `stack.py`, which
gives every size in one pass and is tested to be equal.
"""
