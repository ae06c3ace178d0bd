from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache

import anthropic
import httpx
import openai
import pytest
from google import genai
from google.genai import types

from kvledger.testing.emulator import Emulator
from kvledger.testing.handle import RunningEmulator

NOON = datetime(2026, 11, 12, 12, tzinfo=UTC).timestamp()

LONG = "Every rule of this house has a number, a reason and a day on which it was written. " * 100
"""Some 2,200 tokens."""

TOOL = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


@dataclass
class World:
    """A running emulator, and each provider's own SDK pointed at it."""

    emulator: RunningEmulator

    def http(self) -> httpx.Client:
        # Plain HTTP, so no certificates: loading them is the slowest part of making a client.
        return httpx.Client(base_url=self.emulator.url, timeout=30, trust_env=False, verify=False)

    def openai(self, retries: int = 0) -> openai.OpenAI:
        return openai.OpenAI(
            base_url=self.emulator.openai_url, api_key="k", max_retries=retries, http_client=self.http()
        )

    def anthropic(self, retries: int = 0) -> anthropic.Anthropic:
        http = _http_of_anthropic()
        return anthropic.Anthropic(
            base_url=self.emulator.anthropic_url, api_key="k", max_retries=retries, http_client=http
        )

    def gemini(self, attempts: int = 1) -> genai.Client:
        options = types.HttpOptions(
            base_url=self.emulator.gemini_url,
            httpx_client=httpx.Client(timeout=30, trust_env=False, verify=False),
            retry_options=types.HttpRetryOptions(attempts=attempts, initial_delay=0.01, max_delay=0.01),
        )
        return genai.Client(api_key="k", http_options=options)


@cache
def _http_of_anthropic():
    return anthropic.DefaultHttpxClient(trust_env=False, verify=False)


@pytest.fixture(scope="session")
def _world() -> Iterator[World]:
    with RunningEmulator(Emulator.create(now=NOON)) as running:
        yield World(running)


@pytest.fixture
def world(_world: World) -> World:
    _world.emulator.reset()
    return _world
