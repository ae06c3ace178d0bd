"""Identity: everything besides tokens that changes KV."""

from __future__ import annotations

from dataclasses import dataclass

from kvledger.cache.digest import Digest, fields_digest


@dataclass(frozen=True)
class Namespace:
    """Two prompts may share KV only if their namespaces are equal in every field.

    All fields are content digests or authenticated identities, never names that someone can choose: `weights` is the
    fingerprint of the model's weights, `tokenizer` that of tokenizer and chat template, `adapter` that of the adapter
    (empty: none), `layout` describes how KV is stored (data type, block size, kernel order), `tenant` comes from the
    authenticated key (empty: the only one).
    """

    weights: str
    tokenizer: str
    adapter: str
    layout: str
    tenant: str

    def digest(self) -> Digest:
        """The root of every block digest in this namespace; equal across processes and Python versions."""
        return fields_digest(
            "namespace",
            weights=self.weights,
            tokenizer=self.tokenizer,
            adapter=self.adapter,
            layout=self.layout,
            tenant=self.tenant,
        )
