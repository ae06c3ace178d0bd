from __future__ import annotations

from kvledger.cache.outline import Stretch, outline
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
        Stretch(space("a"), 0, 0, (1,) * 8, 2, 1, 15.0, 0.0, 2),
        Stretch(space("a"), 1, 8, (2,) * 6, 2, 0, 15.0, 15.0, 0),
        Stretch(space("a"), 1, 8, (3,) * 4, 1, 0, 5.0, 0.0, 0),
        Stretch(space("b"), 0, 0, (5,), 1, 0, 5.0, 5.0, 0),
    ]
