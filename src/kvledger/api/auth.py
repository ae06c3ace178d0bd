"""API keys: who may call, as which tenant, and who may see everybody's."""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256
from http import HTTPStatus

from starlette.requests import Request

from kvledger.api.errors import Refusal
from kvledger.ledger.keys import Key, KeyRing


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sent a request. `tenant` is that of a key from the ledger, else the digest of the key ("" where no key is
    configured); `key` is the one from the ledger."""

    tenant: str
    is_operator: bool
    """May see and clear what belongs to all tenants."""
    key: Key | None = None


class Keys:
    """The accepted API keys, kept as digests only. With none, everybody may call, is the same tenant, and its operator.

    The keys in `operators` do what others do, each as a tenant of its own, and may look at all tenants besides. Those
    of `ring` were made with `kvledger keys`, with a tenant and limits of their own.
    """

    def __init__(self, keys: Iterable[str] = (), operators: Iterable[str] = (), ring: KeyRing | None = None) -> None:
        everyone = {sha256(key.encode()).digest(): False for key in keys}
        everyone |= {sha256(key.encode()).digest(): True for key in operators}
        self._digests = tuple(everyone.items())
        self._ring = ring or KeyRing()

    def __bool__(self) -> bool:
        return bool(self._digests or self._ring)

    def tenant(self, authorization: str | None) -> str:
        """The tenant behind an `Authorization` header; raises what `caller` raises."""
        return self.caller(authorization).tenant

    def caller(self, authorization: str | None) -> Caller:
        """Who sent an `Authorization` header; raises `Refusal` with 401."""
        scheme, _, key = (authorization or "").partition(" ")
        return self.admit(key.strip() if scheme.lower() == "bearer" else None)

    def admit(self, presented: str | None) -> Caller:
        """Who sent the key `presented`; raises `Refusal` with 401.

        Every configured digest is compared, each in constant time, so the time taken tells nothing about the keys.
        """
        if not self:
            return Caller("", is_operator=True)
        raw = (presented or "").encode("latin-1", "replace")  # header text is latin-1: these are its raw bytes
        digest_of_key = sha256(raw).digest()
        matches = [
            Caller(digest.hex(), is_operator)
            for digest, is_operator in self._digests
            if hmac.compare_digest(digest, digest_of_key)
        ]
        if (key := self._ring.find(raw)) is not None:
            matches.append(Caller(key.tenant, is_operator=False, key=key))
        if not presented or not matches:
            raise Refusal(
                HTTPStatus.UNAUTHORIZED,
                "This server needs a valid API key: send it as `Authorization: Bearer KEY`, or as your SDK does.",
                code="invalid_api_key",
                headers={"www-authenticate": "Bearer"},
            )
        return matches[0]

    def viewer(self, request: Request) -> Caller:
        """Who asks to see or clear what is cached; raises `Refusal` with 401."""
        caller = self.caller(request.headers.get("authorization"))
        request.state.record.tenant = caller.tenant
        return caller

    def operator(self, request: Request) -> Caller:
        """The operator who sent a request; raises `Refusal` with 401 or 403 for everybody else."""
        caller = self.viewer(request)
        if not caller.is_operator:
            raise Refusal(
                HTTPStatus.FORBIDDEN,
                "This tells about all keys together, so it takes an operator's key: one given with --operator-key.",
                code="operator_only",
            )
        return caller


def check_host(keys: Keys, request: Request) -> None:
    """Raise `Refusal` with 403 where there are no keys and the server is called by a name that a web page can choose.

    Without keys only the network protects the server, and a page can be made to reach its reader's own machine under a
    name of its choosing (DNS rebinding). Nobody can choose where an address or localhost leads.
    """
    if not keys and not _is_unforgeable(request.url.hostname or ""):
        raise Refusal(
            HTTPStatus.FORBIDDEN,
            f"Without API keys this server does not answer under the name {(request.url.hostname or '')[:80]}: call it"
            " by its address or as localhost, or start it with keys.",
            code="host_not_allowed",
        )


def short(tenant: str) -> str:
    """Enough of a tenant's digest to tell tenants apart in logs and listings; useless as a key."""
    return tenant[:12]


def _is_unforgeable(host: str) -> bool:
    """Whether nobody can make the host name `host` lead elsewhere than where it says."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return False
    return True
