from __future__ import annotations

import pytest

from kvledger.errors import InvalidRequestError
from kvledger.ledger.account import Split
from kvledger.providers import catalogue
from kvledger.providers.catalogue import provider_named, provider_of, read_usage, rulebook, split_name


@pytest.mark.parametrize(
    ("model", "provider"),
    [
        ("claude-sonnet-5-5", "anthropic"),
        ("claude-sonnet-5.5", "anthropic"),
        ("anthropic/claude-opus-5.5", "anthropic"),
        ("us.anthropic.claude-opus-4-7-v1:0", "bedrock"),
        ("gpt-6-sol", "openai"),
        ("gpt-4o", "openai"),
        ("o3", "openai"),
        ("o4-mini", "openai"),
        ("openai/gpt-5.2", "openai"),
        ("openai/gpt-oss-120b", "groq"),
        ("gemini-2.5-pro", "gemini"),
        ("models/gemini-3.8-flash", "gemini"),
        ("google/gemini-4-argon", "gemini"),
        ("deepseek-v4-pro", "deepseek"),
        ("deepseek/deepseek-chat", "deepseek"),
        ("accounts/fireworks/models/deepseek-v3", "fireworks"),
        ("Qwen3-Max", "qwen"),
        ("kimi-k2.6", "kimi"),
        ("moonshotai/kimi-k3", "kimi"),
        ("mistral-large-latest", "mistral"),
        ("codestral-2508", "mistral"),
        ("open-mixtral-8x22b", "mistral"),
        ("grok-4.7", "xai"),
        ("x-ai/grok-4.5", "xai"),
        ("GLM-5.2", "zai"),
    ],
)
def test_whose_model_it_is(model, provider):
    assert provider_of(model).name == provider


@pytest.mark.parametrize(
    ("name", "provider", "model"),
    [
        ("anthropic:claude-sonnet-5.5", "anthropic", "claude-sonnet-5.5"),
        ("google:gemini-2.5-pro", "gemini", "gemini-2.5-pro"),
        ("groq:openai/gpt-oss-20b", "groq", "openai/gpt-oss-20b"),
        ("Moonshot:kimi-k3", "kimi", "kimi-k3"),
        ("bedrock:us.anthropic.claude-opus-4-7-v1:0", "bedrock", "us.anthropic.claude-opus-4-7-v1:0"),
        ("us.anthropic.claude-opus-4-7-v1:0", "bedrock", "us.anthropic.claude-opus-4-7-v1:0"),
        ("fireworks:llama-v3p1", "fireworks", "llama-v3p1"),
        ("gpt-6-sol", "openai", "gpt-6-sol"),
    ],
)
def test_provider_and_model_in_one_word(name, provider, model):
    found, rest = split_name(name)
    assert (found.name, rest) == (provider, model)


@pytest.mark.parametrize(
    ("ask", "name", "says"),
    [
        (provider_named, "antropic", "did you mean anthropic"),
        (provider_named, "?", "use one of anthropic, openai"),
        (split_name, "gogle:gemini-2.5-pro", "There is no provider `gogle`: did you mean google"),
        (split_name, "anthropic:", "names no model"),
        (provider_of, "llama-3", "write it as PROVIDER:MODEL"),
    ],
)
def test_unknown_names_are_refused_with_near_ones(ask, name, says, monkeypatch):
    monkeypatch.setattr(catalogue, "known_models", lambda: ("claude-sonnet-5-5", "gpt-oss-20b"))
    with pytest.raises(InvalidRequestError, match=says.replace("?", r"\?")) as caught:
        ask(name)
    assert "\n" not in str(caught.value)


def test_a_misspelt_model_finds_its_neighbour(monkeypatch):
    monkeypatch.setattr(catalogue, "known_models", lambda: ("claude-sonnet-5-5", "gpt-oss-20b"))
    with pytest.raises(InvalidRequestError, match="did you mean claude-sonnet-5-5"):
        provider_of("cladue-sonnet-5-5")


@pytest.mark.parametrize("provider", catalogue.PROVIDERS, ids=lambda provider: provider.name)
def test_every_provider_has_a_rulebook(provider):
    rules = rulebook(provider.name)
    assert all(rulebook(alias).provider == rules.provider for alias in provider.aliases)
    assert isinstance(rules.provider, str)


def test_no_name_stands_for_two_providers():
    names = [name for provider in catalogue.PROVIDERS for name in (provider.name, *provider.aliases)]
    assert len(names) == len(set(names))
    assert all(name == name.lower() for name in names)


def test_usage_by_any_name():
    reported = {"prompt_tokens": 10, "completion_tokens": 1, "cached_tokens": 4}
    assert read_usage("moonshot", reported).split == Split(10, 4, {}, 6)
