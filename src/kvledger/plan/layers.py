"""What one layer of a model keeps for a request, and what it computes for a token. Each kind by its own formula.

Counts are of elements and of multiply-adds (one multiplication and one addition); what an element takes in bytes is
for `dtypes` to say.
"""

from __future__ import annotations

from dataclasses import dataclass

STATE_BYTES = 4
"""Recurrent states are kept in float32: they are summed up over the whole text."""

CONVOLUTION_BYTES = 2
"""The last inputs of a layer's short convolution are kept in 16 bits, as they come."""


@dataclass(frozen=True, slots=True)
class Attention:
    """Softmax attention with `kv_heads` keys and values per token (Vaswani et al., arXiv:1706.03762; multi-query:
    Shazeer, arXiv:1911.02150; grouped-query: Ainslie et al., arXiv:2305.13245).

    With a `window` of w a token sees itself and the w - 1 before it, and no more than w tokens are kept. With
    `is_chunked` it sees only its own chunk of w tokens (Llama 4), which takes the same room.
    """

    heads: int
    kv_heads: int
    head_dim: int
    window: int | None = None
    is_chunked: bool = False

    @property
    def kind(self) -> str:
        """MHA, GQA or MQA, and the window."""
        name = "MHA" if self.kv_heads == self.heads else "MQA" if self.kv_heads == 1 else "GQA"
        if self.window is None:
            return name
        return f"{name}, {'chunks' if self.is_chunked else 'window'} of {self.window}"

    @property
    def elements_per_token(self) -> int:
        """A key and a value for each KV head."""
        return 2 * self.kv_heads * self.head_dim

    @property
    def state_bytes(self) -> int:
        """Nothing besides keys and values."""
        return 0

    @property
    def copies(self) -> int:
        """How many accelerators can share the keys and values without anyone keeping them twice: one per KV head."""
        return self.kv_heads

    def tokens_kept(self, context: int) -> int:
        """Of how many tokens keys and values are kept once a request has `context` of them."""
        return context if self.window is None else min(context, self.window)

    def multiply_adds(self, context: int) -> int:
        """For a token that sees `context` tokens: scores (q k) and the weighted sum of values."""
        return 2 * self.heads * self.head_dim * self.tokens_kept(context)

    @property
    def prefill_width(self) -> int:
        """Multiply-adds per token and token it sees, in a prompt."""
        return 2 * self.heads * self.head_dim


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434): per token one latent vector of `rank` elements,
    from which all heads' keys and values are made, and one rotary key of `rope_dim` that they share.

    Decoding works on the latent vectors as they are; a prompt is computed with full keys and values.
    """

    heads: int
    rank: int
    rope_dim: int
    nope_dim: int
    value_dim: int

    @property
    def kind(self) -> str:
        return "MLA"

    @property
    def elements_per_token(self) -> int:
        """The latent vector and the rotary key."""
        return self.rank + self.rope_dim

    @property
    def state_bytes(self) -> int:
        """Nothing besides the latent vectors."""
        return 0

    @property
    def copies(self) -> int:
        """One: every accelerator needs the whole latent vector for its heads."""
        return 1

    def tokens_kept(self, context: int) -> int:
        """All of them."""
        return context

    def multiply_adds(self, context: int) -> int:
        """For a decoded token that sees `context` tokens: scores against latent and rotary key, sum of latents."""
        return self.heads * (2 * self.rank + self.rope_dim) * context

    @property
    def prefill_width(self) -> int:
        """Multiply-adds per token and token it sees, in a prompt, where keys and values are spelt out."""
        return self.heads * (self.nope_dim + self.rope_dim + self.value_dim)


@dataclass(frozen=True, slots=True)
class Recurrent:
    """A layer whose memory does not grow: Mamba (Gu and Dao, arXiv:2312.00752), Mamba-2 (arXiv:2405.21060), gated
    delta net (arXiv:2412.06464), lightning attention (arXiv:2401.04658).

    `state` elements are the recurrent state, `convolution` elements the last inputs of the short convolution.
    """

    kind: str
    state: int
    convolution: int = 0

    @property
    def elements_per_token(self) -> int:
        """None: a token changes the state and leaves nothing else."""
        return 0

    @property
    def state_bytes(self) -> int:
        """Bytes per request, whatever its length."""
        return self.state * STATE_BYTES + self.convolution * CONVOLUTION_BYTES

    @property
    def copies(self) -> int:
        """States divide by heads and channels, of which there are many."""
        return self.state

    def tokens_kept(self, context: int) -> int:
        """None."""
        return 0

    def multiply_adds(self, context: int) -> int:
        """Update and reading of every element of the state, however long the text is."""
        return 2 * self.state

    @property
    def prefill_width(self) -> int:
        """Nothing grows with the tokens before."""
        return 0


Mixer = Attention | LatentAttention | Recurrent


@dataclass(frozen=True, slots=True)
class Layers:
    """Equal layers, `count` of them. Parameters are of one layer.

    `parameters` are those that every token uses: the mixer, norms, a dense feed-forward part, shared experts and the
    router. Of `num_experts` routed experts of `expert_parameters` each, a token uses `experts_per_token`.
    """

    count: int
    mixer: Mixer
    parameters: int
    ffn_size: int
    expert_parameters: int = 0
    num_experts: int = 0
    experts_per_token: int = 0

    @property
    def total_parameters(self) -> int:
        """All parameters of one layer."""
        return self.parameters + self.num_experts * self.expert_parameters

    @property
    def active_parameters(self) -> int:
        """Those that one token uses."""
        return self.parameters + self.experts_per_token * self.expert_parameters

    def experts_touched(self, tokens: int) -> float:
        """How many experts `tokens` tokens use between them, on average, if the router spreads them evenly."""
        if not self.num_experts:
            return 0.0
        return self.num_experts * (1 - (1 - self.experts_per_token / self.num_experts) ** tokens)
