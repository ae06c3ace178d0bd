from __future__ import annotations

from kvledger.cache.digest import Digest, chain_digests
from kvledger.cache.events import Cleared, EventLog, RemovalReason, Removed, Stored
from tests.cache.world import World, space


def test_p19_replaying_the_events_gives_the_resident_set_and_removals_say_why():
    """`World.check` replays them after each request; here is what they say."""
    world = World(num_blocks=4, options={"events": EventLog()})
    root = space().digest()
    ones = tuple(chain_digests(root, [1] * 12, 4))
    world.serve(space(), [1] * 12)
    world.serve(space(), [2] * 8)
    world.clock.advance(301)
    world.serve(space(), [3] * 2)  # an open block is no news
    world.serve(space(), [3] * 4)
    world.cache.clear()
    world.check()
    assert world.cache.events.since(0) == [
        Stored(1, root, ones),
        Removed(2, ones[:0:-1][:1], RemovalReason.EVICTED),
        Stored(3, root, tuple(chain_digests(root, [2] * 8, 4))),
        Removed(4, ones[1::-1], RemovalReason.EXPIRED),
        Removed(5, tuple(chain_digests(root, [2] * 8, 4))[::-1], RemovalReason.EXPIRED),
        Stored(6, root, tuple(chain_digests(root, [3] * 4, 4))),
        Cleared(7),
    ]


def test_p19_a_duplicate_is_stored_once_and_removed_once():
    world = World(options={"events": EventLog()})
    pair = [world.admit(space(), [1] * 3) for _ in range(2)]
    for sequence in pair:
        sequence.tokens += [1] * 6
        world.write(sequence, 9)
        world.check()
    world.finish(pair[0])
    world.check()
    assert [type(event) for event in world.cache.events.since(0)] == [Stored]


def test_replay_is_bounded_and_says_when_it_falls_short():
    log = EventLog(capacity=3)
    assert log.since(0) == []
    for number in range(5):
        log.stored(Digest(b""), (Digest(bytes([number])),))
    assert [event.number for event in log.since(2)] == [3, 4, 5]
    assert log.since(5) == []
    assert log.since(1) is None
    assert log.since(6) is None  # a consumer from before a restart
