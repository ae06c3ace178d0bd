from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kvledger.cache.digest import token_bytes
from kvledger.cache.trie import NONE, Fan, Trie, common_tokens
from tests.cache.world import space

TOKENS = st.lists(st.integers(0, 3), min_size=1, max_size=4)


def test_common_tokens_counts_whole_tokens():
    assert common_tokens(token_bytes([1, 2, 3]), token_bytes([1, 2, 4])) == 2
    assert common_tokens(token_bytes([1, 256]), token_bytes([1, 512])) == 1  # the second tokens share three bytes
    assert common_tokens(token_bytes([1, 2]), token_bytes([1, 2, 3])) == 2
    assert common_tokens(b"", token_bytes([1])) == 0


@given(st.lists(st.binary(min_size=1, max_size=3), min_size=2, max_size=60), st.binary(max_size=4), st.randoms())
def test_a_fan_is_a_sorted_set_in_which_longer_keys_replace_their_prefixes(keys, probe, rng):
    kept: list[bytes] = []
    fan = None
    for key in keys:
        if any(each.startswith(key) for each in kept):
            continue
        prefix = next((each for each in kept if key.startswith(each)), None)
        kept = sorted([each for each in kept if each != prefix] + [key])
        if fan is not None:
            assert fan.add(key) == prefix
        elif len(kept) == 2:
            fan = Fan(kept)
    if fan is None:
        return
    for key in rng.sample(kept, rng.randrange(len(kept))):
        fan.remove(key)
        kept.remove(key)
    assert list(fan) == kept
    assert fan.only() == (kept[0] if len(kept) == 1 else None)
    below, above = [key for key in kept if key <= probe], [key for key in kept if key > probe]
    assert fan.neighbours(probe) == below[-1:] + above[:1]


def test_a_fan_of_many_thousands_stays_in_order():
    keys = [(7919 * i % 10007).to_bytes(4, "big") for i in range(10007)]  # a permutation
    fan = Fan(keys[:2])
    for key in keys[2:]:
        fan.add(key)
    assert list(fan) == sorted(keys)
    for key in keys[:9000]:
        fan.remove(key)
    assert list(fan) == sorted(keys[9000:])


@given(st.lists(TOKENS, max_size=30), TOKENS)
def test_the_nearest_child_shares_most(children, wanted):
    """And among the children none covers another: a block that is covered has left."""
    trie = Trie(64, 4)
    root = trie.root(space())
    expected: set[tuple[int, ...]] = set()
    for block, tokens in enumerate(children):
        data = token_bytes(tokens)
        covering = [each for each in expected if each[: len(tokens)] == tuple(tokens)]
        assert trie.covers(root, data) == bool(covering)
        if covering:
            continue
        covered = [each for each in expected if tuple(tokens[: len(each)]) == each]
        left = trie.insert(root, data, block)
        assert (left != NONE) == bool(covered)
        expected = (expected - set(covered)) | {tuple(tokens)}
    assert {trie.tokens_of(child) for child in trie.children_of(root)} == {token_bytes(each) for each in expected}
    child, count = trie.nearest_child(root, token_bytes(wanted))
    best = max((common_tokens(token_bytes(each), token_bytes(wanted)) for each in expected), default=0)
    assert count == best
    assert child == NONE or common_tokens(trie.tokens_of(child), token_bytes(wanted)) == best
    for block in trie.children_of(root):
        trie.remove((block,))
    assert trie.nodes == {}
    assert trie.children_of(root) == []


def test_a_walk_ends_where_the_tokens_do():
    trie = Trie(8, 2)
    root = trie.root(space())
    trie.insert(root, token_bytes([1, 2]), 5)
    trie.insert_chain(5, token_bytes([3, 4, 5, 6]), [7, 3])
    assert trie.walk(root, token_bytes([1, 2, 3, 4, 5, 6, 7, 8]), 4) == [5, 7, 3]
    assert trie.walk(root, token_bytes([1, 2, 3, 4, 5, 6]), 2) == [5, 7]
    assert trie.walk(root, token_bytes([1, 2, 4, 4]), 2) == [5]
    assert trie.walk(trie.root(space("other")), token_bytes([1, 2]), 1) == []
    assert trie.path_to(3) == [5, 7, 3]
    assert trie.path_to(root) == []
