from __future__ import annotations

from kvledger.cache.digest import chain_digests
from kvledger.cache.events import EventLog
from kvledger.cache.outline import Stretch, outline, resident_digests
from kvledger.text.prompt import Mark
from tests.cache.world import World, space


def test_an_outline_shows_stretches_between_branches():
    world = World()
    world.serve(space("a"), [1] * 8 + [2] * 6, marks=[Mark(8)])
    world.clock.advance(10)
    world.admit(space("a"), [1] * 8 + [3] * 4)
    world.serve(space("b"), [5])
    world.write(world.running[0], 4)
    world.clock.advance(5)
    assert list(outline(world.cache, world.clock.now())) == [
        Stretch(space("a"), 0, 0, (1,) * 8, 2, 1, 15.0, 0.0, 300.0, 2),
        Stretch(space("a"), 1, 8, (2,) * 6, 2, 0, 15.0, 15.0, 285.0, 0),
        Stretch(space("a"), 1, 8, (3,) * 4, 1, 0, 5.0, 0.0, 300.0, 0),
        Stretch(space("b"), 0, 0, (5,), 1, 0, 5.0, 5.0, 295.0, 0),
    ]
    assert [stretch.tokens for stretch in outline(world.cache, world.clock.now(), tenant="b")] == [(5,)]
    assert list(outline(world.cache, world.clock.now(), tenant="c")) == []


def test_resident_digests_are_those_of_the_full_blocks():
    world = World(options={"events": EventLog()})
    one, two, open_only = [1] * 8 + [2] * 4, [1] * 8 + [3] * 7, [5] * 3
    for tokens in (one, two, open_only):
        world.serve(space("a"), tokens)
    root = space("a").digest()
    wanted = {*chain_digests(root, one, 4), *chain_digests(root, two, 4)}
    runs = list(resident_digests(world.cache))
    digests = [digest for _, run in runs for digest in run]
    assert len(digests) == len(set(digests))
    assert set(digests) == wanted
    known = {root}
    for parent, run in runs:  # a parent comes before what follows it
        assert parent in known
        known |= set(run)
