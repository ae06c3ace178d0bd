"""The account that `kvledger generate` prints, by hand."""

from __future__ import annotations

import pytest

from kvledger.cli.generate import account
from kvledger.engine.request import Usage


@pytest.mark.parametrize(
    ("usage", "line"),
    [
        (
            Usage(prompt_tokens=120, reused_tokens=20, output_tokens=41, queued=0.1, prefill=0.2, decode=0.5),
            "prompt 120 tokens, 20 reused; output 41; first token after 0.300 s; prefill 500, decode 80 tokens/s",
        ),
        (
            Usage(prompt_tokens=5, reused_tokens=0, output_tokens=1, queued=0.0, prefill=0.01, decode=0.0),
            "prompt 5 tokens, 0 reused; output 1; first token after 0.010 s; prefill 500, decode - tokens/s",
        ),
    ],
)
def test_the_account_line(usage: Usage, line: str) -> None:
    assert account(usage) == line
