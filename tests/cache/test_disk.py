"""The disk tier: what was put comes back exactly, or is a miss."""

from __future__ import annotations

import pickle
import random
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import pytest

from kvledger.cache import MissReason, disk, tiers
from kvledger.cache.digest import Digest, chain_digests, token_bytes
from kvledger.cache.disk import DiskEntry, DiskTier, fingerprint
from kvledger.cache.tiers import LowerTier, Rates, TierBlock
from kvledger.errors import CacheFolderError
from tests.cache.world import World, space

LIMIT = 1 << 20
ROOT = space().digest()


def block(tokens: list[int], parent: bytes = ROOT, payload: bytes | None = None) -> TierBlock:
    return TierBlock(Digest(parent), token_bytes(tokens), payload or bytes(tokens) * 25)


def chain(length: int, start: int = 0) -> list[TierBlock]:
    """Blocks of 4 tokens, one below the other; the last may be open."""
    tokens = list(range(start, start + length))
    parents = [ROOT, *chain_digests(ROOT, tokens, 4)]
    return [block(tokens[at : at + 4], parents[at // 4]) for at in range(0, length, 4)]


def read(tier: DiskTier, entry: DiskEntry) -> bytes | None:
    try:
        return tier.read(entry)
    except (OSError, ValueError) as error:
        tier.drop(entry, str(error))
        return None


def found(tier: DiskTier, tokens: list[int]) -> tuple[list[bytes | None], int]:
    entries, covered = tier.find(ROOT, token_bytes(tokens), 16)
    return [read(tier, entry) for entry in entries], covered // 4


def test_what_was_put_comes_back(tmp_path):
    tier = DiskTier(tmp_path, "model", limit_bytes=LIMIT)
    blocks = chain(12)
    assert tier.put(blocks[:2])
    assert tier.put(blocks)
    assert found(tier, list(range(12))) == ([each.payload for each in blocks], 12)
    assert found(tier, list(range(8))) == ([each.payload for each in blocks[:2]], 8)
    assert found(tier, [*range(6), 9, 9]) == ([each.payload for each in blocks[:2]], 6)
    assert found(tier, [5, 6]) == ([], 0)
    assert len(tier) == 3


def test_an_open_block_is_found_by_what_it_shares(tmp_path):
    tier = DiskTier(tmp_path, "model", limit_bytes=LIMIT)
    tier.put(chain(7))
    assert found(tier, list(range(9)))[1] == 7
    assert found(tier, [*range(5), 9])[1] == 5
    assert found(tier, list(range(3)))[1] == 3


def test_p18_the_index_survives_a_restart(tmp_path):
    tier = DiskTier(tmp_path, "model", limit_bytes=LIMIT)
    for start in (0, 50, 100):
        tier.put(chain(11, start))
    before = [found(tier, list(range(start, start + 20))) for start in (0, 50, 100)]
    held = tier.bytes_held
    tier.close()
    tier = DiskTier(tmp_path, "model", limit_bytes=LIMIT)
    assert [found(tier, list(range(start, start + 20))) for start in (0, 50, 100)] == before
    assert tier.bytes_held == held == sum(path.stat().st_size for path in tier.folder.glob("*.kv"))


def test_a_flipped_byte_anywhere_is_a_miss_with_a_logged_reason(tmp_path, caplog):
    tier = DiskTier(tmp_path, "model", limit_bytes=LIMIT)
    blocks = chain(8)
    tier.put(blocks)
    tier.close()
    [path] = tier.folder.glob("*.kv")
    content = path.read_bytes()
    payloads = [each.payload for each in blocks]
    for at in range(len(content)):
        path.write_bytes(content[:at] + bytes([content[at] ^ (1 << at % 8)]) + content[at + 1 :])
        caplog.clear()
        tier = DiskTier(tmp_path, "model", limit_bytes=LIMIT)
        loaded, _ = found(tier, list(range(8)))
        assert loaded in ([], [None, None], [payloads[0], None])
        assert "is left out of the cache" in caplog.text
        assert not path.exists()
        assert tier.bytes_held == 0
        assert len(tier) == 0
        tier.close()


@pytest.mark.parametrize("length", [0, 5, 100, -1])
def test_a_truncated_file_is_left_out(tmp_path, length, caplog):
    tier = DiskTier(tmp_path, "model", limit_bytes=LIMIT)
    tier.put(chain(8))
    tier.close()
    [path] = tier.folder.glob("*.kv")
    path.write_bytes(path.read_bytes()[:length])
    tier = DiskTier(tmp_path, "model", limit_bytes=LIMIT)
    assert found(tier, list(range(8))) == ([], 0)
    assert str(path) in caplog.text


def test_a_file_that_vanishes_is_a_miss(tmp_path):
    tier = DiskTier(tmp_path, "model", limit_bytes=LIMIT)
    tier.put(chain(8))
    for path in tier.folder.glob("*.kv"):
        path.unlink()
    assert found(tier, list(range(8))) == ([None, None], 8)
    assert found(tier, list(range(8))) == ([], 0)


def test_verify_names_what_is_damaged(tmp_path):
    tier = DiskTier(tmp_path, "model", limit_bytes=LIMIT)
    tier.put(chain(8))
    tier.put(chain(8, 50))
    assert tier.verify() == []
    damaged, _ = sorted(tier.folder.glob("*.kv"))
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"!")
    assert tier.verify() == [f"{damaged}: a payload does not match its checksum."]


def test_what_a_crash_leaves_behind_is_removed(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "0000000000000007.tmp").write_bytes(b"half")
    tier = DiskTier(tmp_path, "model", limit_bytes=LIMIT)
    assert [path.name for path in tier.folder.iterdir()] == ["lock"]


def test_a_write_that_fails_is_a_miss_and_gives_its_room_back(tmp_path, monkeypatch, caplog):
    tier = DiskTier(tmp_path, "model", limit_bytes=LIMIT)

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(disk.os, "fsync", full)
        tier.put(chain(8))
    assert (found(tier, list(range(8))), tier.bytes_held) == (([], 0), 0)
    assert "No space left on device" in caplog.text
    assert [path.name for path in tier.folder.iterdir()] == ["lock"]
    assert tier.put(chain(8))
    assert found(tier, list(range(8)))[1] == 8


def test_nothing_is_found_before_it_is_safe(tmp_path):
    """Two-phase put: the writer is held up, and meanwhile the blocks are neither found nor taken twice."""
    gate = Event()
    with ThreadPoolExecutor(1) as executor:
        tier = DiskTier(tmp_path, "model", limit_bytes=LIMIT, executor=executor)
        executor.submit(gate.wait)
        assert tier.put(chain(8))
        assert tier.put(chain(8))
        held = tier.bytes_held
        assert found(tier, list(range(8))) == ([], 0)
        gate.set()
        assert tier.verify() == []  # waits for the writer
        assert found(tier, list(range(8)))[1] == 8
        assert tier.bytes_held == held
        assert len(list(tier.folder.glob("*.kv"))) == 1
        tier.close()


def test_the_size_is_bounded_and_the_least_recently_used_goes(tmp_path):
    tier = DiskTier(tmp_path, "model", limit_bytes=LIMIT)
    tier.put(chain(8))
    size = tier.bytes_held
    tier.close()
    tier = DiskTier(tmp_path, "model", limit_bytes=3 * size + 10)
    for start in (20, 40):
        tier.put(chain(8, start))
    assert found(tier, list(range(8)))[1] == 8  # used again
    for start in (60, 80):
        tier.put(chain(8, start))
        assert sum(path.stat().st_size for path in tier.folder.glob("*.kv")) == tier.bytes_held <= 3 * size + 10
    assert [found(tier, list(range(start, start + 8)))[1] for start in (0, 20, 40, 60, 80)] == [8, 0, 0, 8, 8]


def test_a_lower_limit_holds_from_the_start(tmp_path):
    tier = DiskTier(tmp_path, "model", limit_bytes=LIMIT)
    for start in (0, 20, 40):
        tier.put(chain(8, start))
    size = tier.bytes_held
    tier.close()
    tier = DiskTier(tmp_path, "model", limit_bytes=size - 1)
    assert tier.bytes_held == size * 2 // 3


def test_prefixes_outlive_what_follows_them(tmp_path):
    """Blocks without the blocks before them are of no use, so those go last even though they came first."""
    blocks = chain(32)
    tier = DiskTier(tmp_path, "model", limit_bytes=LIMIT)
    tier.put(blocks[:1])
    size = tier.bytes_held
    for each in blocks[1:]:
        tier.put([each])
    tier.close()
    for limit in (6 * size, 3 * size, size):
        tier = DiskTier(tmp_path, "model", limit_bytes=limit)
        assert found(tier, list(range(32)))[1] == 4 * (limit // size)
        tier.close()


def test_prefixes_outlive_what_follows_them_in_mixed_groups(tmp_path):
    """A group may hold blocks of several prompts; the blocks before each of them count."""
    tier = DiskTier(tmp_path, "model", limit_bytes=LIMIT)
    one, other = chain(8), chain(8, 50)
    for group in ([one[0]], [other[0]], [one[1], other[1]]):
        tier.put(group)
    size = tier.bytes_held
    tier.close()
    tier = DiskTier(tmp_path, "model", limit_bytes=size - 1)
    assert [found(tier, list(range(start, start + 8)))[1] for start in (0, 50)] == [4, 4]


def test_what_alone_exceeds_the_limit_is_refused_with_a_reason(tmp_path, caplog):
    tier = DiskTier(tmp_path, "model", limit_bytes=300)
    assert not tier.put(chain(8))
    assert "exceed the disk tier's limit of 300" in caplog.text
    assert tier.bytes_held == 0


def test_p02_an_equal_digest_with_other_content_is_a_miss(tmp_path, monkeypatch):
    for module in (disk, tiers):
        monkeypatch.setattr(module, "block_digest", lambda parent, tokens: Digest(bytes(32)))
    tier = DiskTier(tmp_path, "model", limit_bytes=LIMIT)
    tier.put([block([1, 2, 3, 4])])
    tier.put([block([5, 6, 7, 8])])
    assert found(tier, [5, 6, 7, 8])[1] == 0
    assert found(tier, [1, 2, 3, 4]) == ([block([1, 2, 3, 4]).payload], 4)


def test_p08_another_model_has_another_folder(tmp_path):
    shape = {"block_size": 16, "bytes_per_block": 64}
    names = {
        fingerprint(space(), **shape),
        fingerprint(space(weights="w2"), **shape),
        fingerprint(space(tokenizer="t2"), **shape),
        fingerprint(space(layout="l2"), **shape),
        fingerprint(space(), block_size=32, bytes_per_block=64),
        fingerprint(space(), block_size=16, bytes_per_block=65),
    }
    assert len(names) == 6
    assert fingerprint(space("a", adapter="x"), **shape) == fingerprint(space("b"), **shape)  # they are in the digests
    DiskTier(tmp_path, "old", limit_bytes=LIMIT).put(chain(8))
    assert found(DiskTier(tmp_path, "new", limit_bytes=LIMIT), list(range(8))) == ([], 0)


def test_a_folder_has_one_owner(tmp_path):
    tier = DiskTier(tmp_path, "model", limit_bytes=LIMIT)
    with pytest.raises(CacheFolderError, match="in use by another process"):
        DiskTier(tmp_path, "model", limit_bytes=LIMIT)
    tier.close()
    DiskTier(tmp_path, "model", limit_bytes=LIMIT).close()


def test_a_folder_that_cannot_be_made_is_a_clear_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CacheFolderError, match="choose one that you can write to"):
        DiskTier(tmp_path / "file", "model", limit_bytes=LIMIT)


# -- under a cache ----------------------------------------------------------------------------------------------------


FAST_DISK = Rates(load_bytes=1e9, compute_tokens=1.0)


class DiskWorld(World):
    """A world with a disk tier; `restart` loses everything but the disk."""

    def __init__(self, folder: Path, num_blocks: int = 16, rates: Rates | None = FAST_DISK):
        self.folder, self.rates = folder, rates
        super().__init__(num_blocks)

    def start(self):
        self.disk = DiskTier(self.folder, "model", limit_bytes=LIMIT)

        def write_block(number, payload):
            self.kv[number] = pickle.loads(payload)

        self.options["lower"] = LowerTier(
            self.disk,
            read_block=lambda number: pickle.dumps(self.kv[number]),
            write_block=write_block,
            rates=self.rates,
        )
        super().start()

    def restart(self):
        self.disk.close()
        self.kv = [[None] * self.block_size for _ in range(self.num_blocks)]
        self.start()


@pytest.mark.parametrize("length", [3, 7, 8, 9, 30])
def test_evicted_blocks_go_down_and_come_up(tmp_path, length):
    world = DiskWorld(tmp_path)
    world.serve(space(), list(range(length)))
    world.serve(space(), [99] * 64)
    assert world.possible(space(), list(range(length))) == 0
    assert world.serve(space(), list(range(length))).reused == length - 1
    assert world.cache.lower.loaded_blocks == -(-(length - 1) // 4)


@pytest.mark.parametrize("length", [3, 8, 30])
def test_p18_a_restart_hits_to_the_same_length(tmp_path, length):
    world = DiskWorld(tmp_path)
    tokens = list(range(length))
    world.serve(space(), tokens)
    assert world.cache.persist(100) == 0
    world.restart()
    assert world.serve(space(), [*tokens, 77]).reused == length
    assert world.serve(space(), [*tokens, 78]).reused == length  # now from RAM


def test_persist_goes_oldest_first_and_a_few_at_a_time(tmp_path):
    world = DiskWorld(tmp_path)
    world.serve(space(), list(range(18)))
    assert [world.cache.persist(2) for _ in range(4)] == [3, 1, 0, 0]
    assert len(world.disk) == 5
    world.serve(space(), [99] * 64)  # what is there already is not written again
    assert world.cache.lower.stored_blocks == 5


def test_p07_the_lower_tier_is_keyed_by_the_full_namespace(tmp_path):
    world = DiskWorld(tmp_path)
    world.serve(space("a"), list(range(16)))
    world.serve(space("c"), [99] * 64)
    for other in (space("b"), space("a", adapter="x"), space("")):
        assert world.serve(other, list(range(16))).reused == 0
        assert world.serve(other, list(range(16))).reused == 15
    world.serve(space("c"), [98] * 64)
    assert world.serve(space("a"), list(range(16))).reused == 15


def test_p08_a_reset_covers_all_tiers(tmp_path):
    world = DiskWorld(tmp_path)
    world.serve(space(), list(range(16)))
    world.cache.persist(100)
    world.cache.clear()
    assert world.serve(space(), list(range(16))).reused == 0
    assert list(world.disk.folder.glob("*.kv")) == []


def test_nothing_is_loaded_that_is_cheaper_to_compute(tmp_path):
    world = DiskWorld(tmp_path)
    world.serve(space(), list(range(16)))
    world.cache.persist(100)
    world.restart()
    payload = sum(each.size for each in world.disk.find(space().digest(), token_bytes(range(15)), 16)[0])
    for compute, reused in ((15 * 1000 / payload + 0.1, 0), (15 * 1000 / payload - 0.1, 15)):
        world.cache.lower.rates = Rates(load_bytes=1000.0, compute_tokens=compute)
        sequence = world.admit(space(), list(range(16)))
        assert sequence.lease.reused == reused
        world.finish(sequence)


def test_damage_below_is_a_miss_and_the_rest_is_used(tmp_path, caplog):
    world = DiskWorld(tmp_path)
    world.serve(space(), list(range(16)))
    for _ in range(4):
        world.cache.persist(1)  # a file for each block
    world.restart()
    third = sorted(world.disk.folder.glob("*.kv"))[2]
    third.write_bytes(third.read_bytes()[:-1] + b"!")
    lease = world.serve(space(), list(range(16)))
    assert lease.reused == 8
    assert lease.miss.reason is MissReason.COLD_START
    assert "does not match its checksum" in caplog.text
    assert world.cache.lower.failed_loads == 1
    assert world.serve(space(), list(range(16))).reused == 15


def test_expired_blocks_go_down_too(tmp_path):
    world = DiskWorld(tmp_path)
    world.serve(space(), list(range(16)))
    world.clock.advance(301)
    assert world.serve(space(), list(range(16))).reused == 15


KILLED = """
import os, pickle, signal, sys
from pathlib import Path
sys.path.insert(0, {root!r})
from tests.cache.test_disk import DiskWorld, space
world = DiskWorld(Path({folder!r}))
world.serve(space(), list(range(30)))
world.cache.persist(100)
print("ready", flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_after_kill_9_the_same_prompt_hits_to_the_same_length(tmp_path):
    program = KILLED.format(root=str(Path(__file__).parents[2]), folder=str(tmp_path))
    killed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (killed.stdout, killed.returncode) == ("ready\n", -signal.SIGKILL), killed.stderr
    assert DiskWorld(tmp_path).serve(space(), list(range(30))).reused == 29


def test_random_traffic_with_restarts_is_always_right(tmp_path):
    """`World` checks every slot of every reuse; here with a pool that holds a third of what is asked for."""
    rng = random.Random(4)
    world = DiskWorld(tmp_path, num_blocks=12)
    for step in range(150):
        tokens = [rng.randrange(2) if rng.random() < 0.2 else 0 for _ in range(rng.randrange(1, 30))]
        world.serve(rng.choice([space("a"), space("b")]), tokens)
        if step % 40 == 39:
            world.cache.persist(3)
            world.restart()
    assert world.cache.lower.loaded_blocks > 0
