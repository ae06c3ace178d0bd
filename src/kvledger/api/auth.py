"""API keys: who may call, and as which tenant."""

from __future__ import annotations

import hmac
from collections.abc import Iterable
from hashlib import sha256
from http import HTTPStatus

from kvledger.api.errors import Refusal


class Keys:
    """The accepted API keys, kept as digests only. With none, everybody may call and is the same tenant."""

    def __init__(self, keys: Iterable[str] = ()) -> None:
        self._digests = tuple(sha256(key.encode()).digest() for key in keys)

    def __bool__(self) -> bool:
        return bool(self._digests)

    def tenant(self, authorization: str | None) -> str:
        """The tenant behind an `Authorization` header ("" where no key is configured); raises `Refusal` with 401.

        Every configured digest is compared, each in constant time, so the time taken tells nothing about the keys.
        """
        if not self._digests:
            return ""
        scheme, _, key = (authorization or "").partition(" ")
        presented = sha256(key.strip().encode("latin-1")).digest()  # header text is latin-1: these are its raw bytes
        matches = [digest for digest in self._digests if hmac.compare_digest(digest, presented)]
        if scheme.lower() != "bearer" or not matches:
            raise Refusal(
                HTTPStatus.UNAUTHORIZED,
                "This server needs a valid API key: send it as `Authorization: Bearer KEY`.",
                code="invalid_api_key",
                headers={"www-authenticate": "Bearer"},
            )
        return matches[0].hex()
