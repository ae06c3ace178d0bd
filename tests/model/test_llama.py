"""The forward pass on tiny models: the numbers of the reference, and the same bits however the work is cut."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from kvledger.errors import InvalidRequestError, ModelFileError
from kvledger.model import reference
from kvledger.model.batch import Run
from kvledger.model.kernels.cpu import Isa
from kvledger.model.kv import DTYPES, KVPool
from kvledger.model.llama import MODES, LlamaModel
from kvledger.model.weights import Weights, load
from tests.model.kernel_calls import ISAS, same_bits
from tests.model.tiny import VOCAB, tiny_folder, tiny_gguf

LENGTH = 300  # more than a chunk of 256 keys
BLOCKS = -(-LENGTH // KVPool.block_size)
STREAMS = [np.random.default_rng(seed).integers(0, VOCAB, LENGTH).astype(np.int32) for seed in range(3)]
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
FILES: dict[str, Callable[[Path], Path]] = {
    "llama Q4_1": lambda path: tiny_gguf(path, format="Q4_1"),
    "llama Q4_0": lambda path: tiny_gguf(path, format="Q4_0", tied=False),
    "llama Q8_0": lambda path: tiny_gguf(path, format="Q8_0", kv_heads=4),
    "llama Q4_K": lambda path: tiny_gguf(path, format="Q4_K", hidden=256, ffn=256, heads=8, kv_heads=8, head_dim=32),
    "llama F16": lambda path: tiny_gguf(path, format="F16"),
    "llama BF16": lambda path: tiny_folder(path, dtype="BF16"),
    "llama 3": lambda path: tiny_folder(path, config={"rope_scaling": LLAMA3, "rope_theta": 500000.0}),
    "qwen2": lambda path: tiny_gguf(path, arch="qwen2", format="Q8_0", kv_heads=1),
    "qwen3": lambda path: tiny_folder(path, family="qwen3", head_dim=32, tied=False),
    "qwen3 Q4_1": lambda path: tiny_gguf(path, arch="qwen3", format="Q4_1", head_dim=32),
}


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Weights]:
    """The tiny model of a name in `FILES`."""
    folder = tmp_path_factory.mktemp("models")
    return cache(lambda name: load(FILES[name](folder / name.replace(" ", "_"))))


@dataclass
class Sequence:
    """One sequence on its way through a pool: how far it has come, and the logits so far."""

    tokens: NDArray[np.int32]
    table: NDArray[np.int32]
    cuts: list[int]
    done: int = 0

    def next_run(self, num_logits: int | None = None) -> Run:
        """The tokens up to the next cut; by default with all their logits."""
        end = next((cut for cut in self.cuts if cut > self.done), len(self.tokens))
        tokens = self.tokens[self.done : end]
        run = Run(tokens, self.done, self.table, len(tokens) if num_logits is None else num_logits)
        self.done = end
        return run


def logits(model: LlamaModel, tokens: NDArray[np.int32], cuts: list[int] | None = None) -> NDArray[np.float32]:
    """All logits of one sequence alone, [len(tokens), vocab], computed in parts that end at `cuts`."""
    sequence = Sequence(tokens, np.arange(BLOCKS, dtype=np.int32)[::-1].copy(), cuts or [])
    pool, parts = KVPool(model.config, BLOCKS, model.kv_dtype), []
    while sequence.done < len(tokens):
        parts.append(model.forward([sequence.next_run()], pool).copy())
    return np.concatenate(parts)


# -- the right numbers ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FILES)
def test_exact_logits_are_the_reference(weights: Callable[[str], Weights], name: str) -> None:
    expected = reference.logits(weights(name), STREAMS[0])
    computed = logits(LlamaModel(weights(name), mode="exact", kv_dtype="f32"), STREAMS[0])
    assert np.abs(computed - expected).max() <= 1e-4 * np.abs(expected).max()


@pytest.mark.parametrize("kv_dtype", DTYPES)
@pytest.mark.parametrize("name", ["llama Q4_1", "qwen2"])
def test_fast_logits_are_near_the_reference(weights: Callable[[str], Weights], name: str, kv_dtype: str) -> None:
    expected = reference.logits(weights(name), STREAMS[0])
    error = logits(LlamaModel(weights(name), kv_dtype=kv_dtype), STREAMS[0]) - expected
    assert np.sqrt((error**2).mean()) <= 0.06 * expected.std()


def test_float_weights_are_never_rounded(weights: Callable[[str], Weights]) -> None:
    fast, exact = (logits(LlamaModel(weights("llama F16"), mode=mode), STREAMS[0]) for mode in MODES)
    assert same_bits(fast, exact)


# -- the same bits ----------------------------------------------------------------------------------------------------

WAYS = [
    ("llama Q4_1", "fast", "f16"),
    ("llama Q4_1", "fast", "bf16"),
    ("qwen2", "fast", "int8"),
    ("qwen3 Q4_1", "exact", "f32"),
    pytest.param(("llama Q8_0", "exact", "f16"), marks=pytest.mark.slow),
    pytest.param(("llama 3", "exact", "int8"), marks=pytest.mark.slow),
    pytest.param(("llama Q4_K", "fast", "f32"), marks=pytest.mark.slow),
]


@dataclass(frozen=True)
class Traffic:
    """What goes through a model: per sequence the stream, its length, its cuts and the step it comes at."""

    sequences: list[tuple[int, int, list[int], int]]
    blocks: list[int]
    last_only: bool


@st.composite
def traffics(draw: st.DrawFn) -> Traffic:
    sequences = []
    for _ in range(draw(st.integers(1, 5))):
        length = draw(st.one_of(st.integers(1, LENGTH), st.sampled_from([16, 17, 255, 256, 257, LENGTH])))
        cuts = draw(st.lists(st.integers(1, length), max_size=6))
        sequences.append((draw(st.integers(0, 2)), length, sorted(cuts), draw(st.integers(0, 2))))
    total = sum(-(-length // KVPool.block_size) for _, length, _, _ in sequences)
    blocks = np.random.default_rng(draw(st.integers(0, 99))).permutation(total).tolist()
    return Traffic(sequences, blocks, draw(st.booleans()))


@pytest.fixture(scope="module", params=WAYS, ids=", ".join)
def build(request: pytest.FixtureRequest, weights: Callable[[str], Weights]) -> Callable[..., LlamaModel]:
    """Makes one of `WAYS` with the arguments given."""
    name, mode, kv_dtype = request.param
    return partial(LlamaModel, weights(name), mode=mode, kv_dtype=kv_dtype)


@pytest.fixture(scope="module")
def teams(build: Callable[..., LlamaModel]) -> tuple[LlamaModel, LlamaModel]:
    """The same model on one thread and on two."""
    return build(threads=1), build(threads=2)


@pytest.fixture(scope="module")
def alone(teams: tuple[LlamaModel, LlamaModel]) -> list[NDArray[np.float32]]:
    """The logits of each stream computed whole, alone, on one thread."""
    return [logits(teams[0], stream) for stream in STREAMS]


@given(traffic=traffics())
@settings(max_examples=25, deadline=None)
def test_cuts_batches_and_threads_change_no_bit(
    teams: tuple[LlamaModel, LlamaModel], alone: list[NDArray[np.float32]], traffic: Traffic
) -> None:
    for model in teams:
        pool = KVPool(model.config, len(traffic.blocks), model.kv_dtype)
        blocks = iter(traffic.blocks)
        waiting = []
        for stream, length, cuts, start in traffic.sequences:
            table = np.array([next(blocks) for _ in range(-(-length // pool.block_size))], np.int32)
            waiting.append((start, stream, Sequence(STREAMS[stream][:length], table, cuts)))
        step = 0
        while waiting:
            here = [(stream, sequence) for start, stream, sequence in waiting if start <= step]
            step += 1
            if not here:
                continue
            runs = [sequence.next_run(1 if traffic.last_only else None) for _, sequence in here]
            computed = model.forward(runs, pool)
            for run, (stream, sequence) in zip(runs, here, strict=True):
                expected = alone[stream][sequence.done - run.num_logits : sequence.done]
                assert same_bits(computed[: run.num_logits], expected)
                computed = computed[run.num_logits :]
            waiting = [entry for entry in waiting if entry[2].done < len(entry[2].tokens)]


def test_token_by_token(teams: tuple[LlamaModel, LlamaModel], alone: list[NDArray[np.float32]]) -> None:
    for model in teams:
        assert same_bits(logits(model, STREAMS[0], list(range(1, LENGTH))), alone[0])


def test_a_block_that_was_saved_and_restored(teams: tuple[LlamaModel, LlamaModel]) -> None:
    # What the prompt cache does: the blocks of a prefix come back in other places of another pool.
    model, prefix = teams[0], 32
    first, second = (KVPool(model.config, BLOCKS + 3, model.kv_dtype) for _ in range(2))
    table, moved = np.arange(BLOCKS, dtype=np.int32), np.arange(3, BLOCKS + 3, dtype=np.int32)
    whole = Sequence(STREAMS[1][:50], table, [prefix])
    model.forward([whole.next_run(0)], first)
    expected = model.forward([whole.next_run()], first).copy()
    for source, target in zip(table[:2].tolist(), moved[:2].tolist(), strict=True):
        second.write_block(target, first.read_block(source))
    second.copy_block(int(moved[1]), 0)
    moved[1] = 0
    rest = Sequence(STREAMS[1][:50], moved, [], done=prefix)
    assert same_bits(model.forward([rest.next_run()], second), expected)


def test_a_step_may_want_no_logits(teams: tuple[LlamaModel, LlamaModel]) -> None:
    model = teams[1]
    run = Sequence(STREAMS[0], np.arange(BLOCKS, dtype=np.int32), []).next_run(0)
    assert model.forward([run], KVPool(model.config, BLOCKS, model.kv_dtype)).shape == (0, VOCAB)


@pytest.mark.slow
def test_every_instruction_set(build: Callable[..., LlamaModel], alone: list[NDArray[np.float32]]) -> None:
    for isa in ISAS:
        assert same_bits(logits(build(isa=isa), STREAMS[2], [17, 270, 271]), alone[2]), isa


COLD = """
import hashlib, sys
import numpy as np
from kvledger.model.batch import Run
from kvledger.model.kv import KVPool
from kvledger.model.llama import LlamaModel
from kvledger.model.weights import load
messages = []
model = LlamaModel(load(sys.argv[1]), progress=messages.append)
table, tokens = np.arange(20, dtype=np.int32), np.arange(300, dtype=np.int32)
logits = model.forward([Run(tokens, 0, table, 300)], KVPool(model.config, 20))
print(len(messages), hashlib.sha256(logits.tobytes()).hexdigest())
"""


@pytest.mark.slow
def test_a_cold_process_gives_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tiny_gguf(tmp_path / "a.gguf")
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "kernels"))
    cold, warm = (
        subprocess.run([sys.executable, "-c", COLD, path], check=True, capture_output=True, text=True).stdout.split()
        for _ in range(2)
    )
    assert cold[0] == "1"  # it said that it would compile
    assert warm[0] == "0"
    assert cold[1] == warm[1]


# -- what is refused --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def small(weights: Callable[[str], Weights]) -> LlamaModel:
    return LlamaModel(weights("llama Q4_1"), context=64)


def ids(*values: int) -> NDArray[np.int32]:
    return np.array(values, np.int32)


@pytest.mark.parametrize(
    ("run", "message"),
    [
        (Run(ids(0, VOCAB), 0, ids(0)), "token ids"),
        (Run(ids(-1), 0, ids(0)), "token ids"),
        (Run(ids(1), -1, ids(0)), "positions"),
        (Run(ids(1, 2), 63, ids(0, 1, 2, 3, 3)), "positions"),
        (Run(ids(), 0, ids(0), 0), "positions|empty|zero-size"),
        (Run(ids(*[1] * 17), 0, ids(0)), "does not cover"),
        (Run(ids(1), 0, ids()), "does not cover"),
        (Run(ids(1), 0, ids(4)), "block numbers"),
        (Run(ids(1), 0, ids(-1)), "block numbers"),
        (Run(ids(1), 0, ids(0), 2), "logits"),
        (Run(ids(1), 0, ids(0), -1), "logits"),
    ],
)
def test_a_wrong_run_is_refused(small: LlamaModel, run: Run, message: str) -> None:
    pool = KVPool(small.config, 4)
    with pytest.raises(ValueError, match=message):
        small.forward([run], pool)
    good = Run(ids(1), 0, ids(0))
    with pytest.raises(ValueError, match=message):
        small.forward([good, run, good], pool)
    assert not pool.data.any()  # nothing was written


def test_a_wrong_pool_is_refused(small: LlamaModel, weights: Callable[[str], Weights]) -> None:
    run = Run(ids(1), 0, ids(0))
    with pytest.raises(ValueError, match="f16 pool"):
        small.forward([run], KVPool(small.config, 4, "f32"))
    with pytest.raises(ValueError, match="another shape"):
        small.forward([run], KVPool(weights("qwen2").config, 4))
    with pytest.raises(ValueError, match="at least one"):
        small.forward([], KVPool(small.config, 4))


def test_the_last_position_of_the_context(small: LlamaModel) -> None:
    run = Run(np.arange(64, dtype=np.int32), 0, ids(0, 1, 2, 3))
    assert np.isfinite(small.forward([run], KVPool(small.config, 4))).all()


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"heads": 64, "kv_heads": 1, "head_dim": 8}, "64 query heads share a KV head, and the kernels take 32"),
        ({"heads": 16, "kv_heads": 8, "head_dim": 6}, "head size 6 is not a multiple of 4"),
        ({"heads": 3, "kv_heads": 3}, "query size 48 is not a multiple of 32"),
        ({"hidden": 48}, "hidden size 48 is not a multiple of 32"),
        ({"ffn": 80}, "feed-forward size 80 is not a multiple of 32"),
    ],
)
def test_sizes_without_kernels_are_refused(tmp_path: Path, sizes: dict[str, int], message: str) -> None:
    path = tiny_gguf(tmp_path / "odd.gguf", format="F16", **sizes)
    with pytest.raises(ModelFileError, match=message) as error:
        LlamaModel(load(path))
    assert str(path) in str(error.value)


@pytest.mark.slow
@pytest.mark.parametrize(("heads", "kv_dtype"), [(16, "f32"), (32, "f32"), (32, "bf16")])
def test_many_query_heads_per_kv_head(tmp_path: Path, heads: int, kv_dtype: str) -> None:
    weights = load(tiny_gguf(tmp_path / "mqa.gguf", format="F16", heads=heads, kv_heads=1))
    expected = reference.logits(weights, STREAMS[0])
    tolerance = 1e-4 if kv_dtype == "f32" else 0.05
    computed = [logits(LlamaModel(weights, kv_dtype=kv_dtype, isa=isa), STREAMS[0]) for isa in (ISAS[-1], Isa.PLAIN)]
    assert np.abs(computed[0] - expected).max() <= tolerance * np.abs(expected).max()
    assert same_bits(*computed)


def test_unknown_modes_and_dtypes_are_refused(weights: Callable[[str], Weights]) -> None:
    with pytest.raises(InvalidRequestError, match="fast, exact"):
        LlamaModel(weights("llama Q4_1"), mode="exakt")
    with pytest.raises(InvalidRequestError, match="f16, bf16, f32, int8"):
        LlamaModel(weights("llama Q4_1"), kv_dtype="f8")


def test_an_int8_head_over_float_layers_finds_its_remainders(
    weights: Callable[[str], Weights], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The remainders of a rounded head lie behind its own tiles, whatever the layers' activation rows are like."""
    floats, quantised = weights("llama F16"), weights("llama Q8_0").tensor("token_embd.weight")
    original = floats.tensor
    monkeypatch.setattr(floats, "tensor", lambda name: quantised if name == "token_embd.weight" else original(name))
    run = Run(np.arange(5, dtype=np.int32), 0, np.zeros(1, np.int32), 5)
    fast, exact = (
        LlamaModel(floats, mode=mode, threads=1).forward([run], KVPool(floats.config, 1)) for mode in ("fast", "exact")
    )
    assert np.abs(fast - exact).max() < 1e-3 * np.abs(exact).max()
