from __future__ import annotations

from pathlib import Path

import pytest

from kvledger.model.gguf_file import read_gguf
from kvledger.text.tokenizer import Tokenizer
from tests.text import vocabularies


@pytest.fixture(scope="session")
def tiny() -> Tokenizer:
    """A byte-level tokenizer with a token for every byte."""
    return vocabularies.byte_level()


@pytest.fixture(scope="session")
def smollm2(smollm2_path: Path) -> Tokenizer:
    return Tokenizer.from_metadata(read_gguf(smollm2_path).metadata, smollm2_path)
