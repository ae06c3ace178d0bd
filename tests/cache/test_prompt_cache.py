"""The life of a lease: what is shared, copied, taken over, awaited, given back."""

from __future__ import annotations

import pytest

from kvledger.cache import Copy, Lease, MissReason, Pending
from kvledger.cache.pool import State
from tests.cache.world import Sequence_, World, space

A = space("a")


def tokens(*runs: tuple[int, int]) -> list[int]:
    """`(7, 3)` is three times token 7."""
    return [token for token, count in runs for _ in range(count)]


def admitted(world: World, prompt: list[int], **options) -> Sequence_:
    sequence = world.admit(A, prompt, **options)
    assert isinstance(sequence, Sequence_)
    return sequence


def test_full_blocks_are_shared_and_a_running_tail_is_copied():
    world = World()
    first = admitted(world, tokens((1, 10)))
    world.write(first, 10)
    second = admitted(world, tokens((1, 10), (2, 3)))
    assert second.lease.table[:2] == first.lease.table[:2]
    assert second.lease.copies == (Copy(first.lease.table[2], second.lease.table[2], 2),)
    assert second.lease.reused == 10
    world.check()
    world.write(second, 3)
    world.check()


def test_an_idle_tail_is_taken_over_without_a_copy():
    world = World()
    world.serve(A, tokens((1, 10)))
    held = world.cache.pool.num_blocks - world.cache.pool.free
    lease = admitted(world, tokens((1, 10), (2, 1))).lease
    assert (lease.reused, lease.copies) == (10, ())
    assert world.cache.pool.num_blocks - world.cache.pool.free == held
    world.check()


def test_a_full_sibling_is_copied_up_to_where_it_differs():
    world = World()
    world.serve(A, tokens((1, 4), (2, 4), (3, 4)))
    sequence = admitted(world, tokens((1, 4), (2, 3), (9, 5)))
    source = world.cache.trie.children_of(sequence.lease.table[0])[0]
    assert sequence.lease.copies == (Copy(source, sequence.lease.table[1], 3),)
    assert world.cache.pool.states[source] == State.READY  # until the copy is made
    world.write(sequence, 1)
    assert world.cache.pool.states[source] == State.IDLE
    assert world.possible(A, tokens((1, 4), (2, 4), (3, 5))) == 12


def test_the_copy_is_given_up_when_its_source_takes_the_only_room():
    world = World(num_blocks=2)
    world.serve(A, tokens((1, 3), (2, 5)))
    sequence = admitted(world, tokens((1, 3), (3, 5)))
    assert (sequence.lease.reused, sequence.lease.copies) == (0, ())
    assert sequence.lease.miss.reason is MissReason.EVICTED


def test_decoded_tokens_are_reused_by_the_next_turn():
    world = World()
    turn = admitted(world, tokens((1, 6)))
    world.write(turn, 6)
    for token in (7, 8, 9, 10, 11):
        turn.tokens.append(token)
        world.write(turn, 1)
        world.check()
    world.finish(turn)
    assert admitted(world, [*tokens((1, 6)), 7, 8, 9, 10, 11, 1, 1]).lease.reused == 11


def test_a_grown_tail_leaves_no_dead_block_behind():
    world = World(num_blocks=64)
    prompt = [0]
    for turn in range(1, 60):
        world.serve(A, prompt)
        assert world.cache.pool.idle == -(-len(prompt) // 4)
        prompt.append(turn)


def test_the_second_of_two_equal_prompts_waits_and_then_computes_one_token():
    world = World()
    prompt = tokens((1, 12))
    first = admitted(world, prompt)
    assert world.admit(A, prompt) == Pending(0)
    world.write(first, 5)
    assert world.admit(A, prompt) == Pending(4)
    world.write(first, 7)
    second = admitted(world, prompt)
    assert second.lease.reused == 11
    assert world.cache.counters.lookups == 2


def test_waiting_ends_where_the_prompts_part():
    world = World()
    first = admitted(world, tokens((1, 8), (2, 8)))
    assert world.admit(A, tokens((1, 8), (3, 8))) == Pending(0)
    world.write(first, 4)
    assert world.admit(A, tokens((1, 8), (3, 8))) == Pending(4)
    world.write(first, 4)
    assert admitted(world, tokens((1, 8), (3, 8))).lease.reused == 8


def test_nobody_waits_for_less_than_a_block():
    world = World()
    admitted(world, tokens((1, 12)))
    second = admitted(world, tokens((1, 4)))  # the block would have to be copied anyway
    assert second.lease.reused == 0
    assert second.lease.miss.reason is MissReason.NOT_YET_WRITTEN


def test_when_the_first_is_aborted_the_second_goes_on():
    world = World()
    prompt = tokens((1, 12))
    first = admitted(world, prompt)
    world.write(first, 4)
    assert world.admit(A, prompt) == Pending(4)
    world.finish(first)
    assert admitted(world, prompt).lease.reused == 4


def test_duplicates_stay_private_and_are_freed():
    world = World()
    first, second = admitted(world, tokens((1, 3))), admitted(world, tokens((1, 3)))
    for sequence in (first, second, first, second):
        sequence.tokens += tokens((2, 6))
        world.write(sequence, 9)
        world.check()
    assert not set(first.lease.table) & set(second.lease.table)
    world.finish(first)
    world.check()
    world.finish(second)
    world.check()
    assert world.cache.pool.idle == 4  # 15 tokens, once


def test_a_lease_without_cache_neither_reads_nor_writes():
    world = World()
    world.serve(A, tokens((1, 12)))
    sequence = admitted(world, tokens((1, 12)), use_cache=False)
    assert (sequence.lease.reused, sequence.lease.miss.reason) == (0, MissReason.DISABLED)
    world.write(sequence, 12)
    world.finish(sequence)
    world.serve(A, tokens((2, 12)), use_cache=False)
    assert world.possible(A, tokens((2, 13))) == 0
    world.check()


def test_a_cache_that_is_off_only_hands_out_blocks():
    world = World(options={"enabled": False})
    for _ in range(2):
        assert world.serve(A, tokens((1, 12))).reused == 0
    assert world.cache.pool.free == world.num_blocks


@pytest.mark.parametrize("reserve", [0, 1, 4, 5])
def test_admission_covers_the_prompt_and_the_reserve(reserve):
    world = World()
    lease = admitted(world, tokens((1, 7)), reserve=reserve).lease
    assert len(lease.table) == -(-(7 + reserve) // 4)


def test_what_does_not_fit_changes_nothing():
    world = World(num_blocks=4)
    world.serve(A, tokens((1, 8)))
    running = admitted(world, tokens((2, 8)))
    before = [*world.cache.pool.states], [*world.cache.pool.ticks], [*world.cache.pool.hits]
    assert world.admit(A, tokens((1, 8), (3, 8))) is None
    assert before == ([*world.cache.pool.states], [*world.cache.pool.ticks], [*world.cache.pool.hits])
    assert world.cache.counters.lookups == 2
    world.check()
    world.finish(running)
    assert admitted(world, tokens((1, 8), (3, 8))).lease.reused == 8


def test_extend_evicts_idle_blocks_and_says_when_there_are_none():
    world = World(num_blocks=4)
    world.serve(A, tokens((1, 8)))
    lease = admitted(world, tokens((2, 8))).lease
    assert world.cache.extend(lease, 8)
    assert world.cache.extend(lease, 13)
    assert not world.cache.extend(lease, 17)
    assert len(lease.table) == 4
    assert not world.cache.fits(17)
    world.check()


def test_release_twice_is_release_once():
    world = World()
    sequence = admitted(world, tokens((1, 8)))
    world.finish(sequence)
    world.cache.release(sequence.lease)
    world.check()
    assert world.cache.pool.free == world.num_blocks  # nothing was written


def test_clear_forgets_but_does_not_disturb():
    world = World()
    world.serve(A, tokens((1, 12)))
    running = admitted(world, tokens((1, 12), (2, 8)))
    world.write(running, 4)
    world.cache.clear()
    world.check()
    assert world.possible(A, tokens((1, 12))) == 0
    world.write(running, 4)
    world.check()
    assert world.possible(A, tokens((1, 12))) == 0
    world.finish(running)
    assert world.cache.pool.free == world.num_blocks


def test_preemption_is_counted_once():
    world = World()
    prompt = tokens((1, 12))
    lease = world.cache.acquire(A, prompt)
    for _ in range(3):
        world.cache.commit(lease, prompt, 12)
        world.cache.release(lease)
        lease = world.cache.acquire(A, prompt, again=True)
        assert isinstance(lease, Lease)
    counters = world.cache.counters
    assert (counters.lookups, counters.prompt_tokens, counters.reused_tokens) == (1, 12, 0)
