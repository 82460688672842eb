"""A token issuer with keys of its own, made when it is needed."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from functools import cached_property
from pathlib import Path
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

URL = "https://issuer.example"
AUDIENCE = "moraine"


class Issuer:
    def __init__(self, kid: str = "key-1") -> None:
        self.kid = kid

    @cached_property
    def key(self) -> rsa.RSAPrivateKey:
        return rsa.generate_private_key(public_exponent=65537, key_size=2048)

    @property
    def public_pem(self) -> bytes:
        return self.key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)

    @property
    def key_set(self) -> dict[str, Any]:
        public = jwt.algorithms.RSAAlgorithm.to_jwk(self.key.public_key(), as_dict=True)
        return {"keys": [{**public, "kid": self.kid, "use": "sig", "alg": "RS256"}]}

    def write_key_set(self, folder: Path) -> Path:
        file = folder / f"{self.kid}.json"
        file.write_text(json.dumps(self.key_set))
        return file

    def claims(self, **changes: Any) -> dict[str, Any]:
        """The claims of a good token, changed; None leaves one out."""
        claims = {
            "iss": URL,
            "aud": AUDIENCE,
            "sub": "polaris",
            "scope": "execute_tasks",
            "exp": int(time.time()) + 3600,
            **changes,
        }
        return {name: value for name, value in claims.items() if value is not None}

    def token(self, **changes: Any) -> str:
        return jwt.encode(self.claims(**changes), self.key, "RS256", headers={"kid": self.kid})

    def unsigned(self, **header: Any) -> str:
        """A good token's claims under a header of the caller's, without a signature."""
        return forged(self.claims(), {"alg": "none", **header})

    def signed_with_public_key(self, **changes: Any) -> str:
        """With HMAC, and the public key as the secret that both sides know."""
        header = {"alg": "HS256", "typ": "JWT", "kid": self.kid}
        head = forged(self.claims(**changes), header)[:-1]
        return f"{head}.{_part(hmac.new(self.public_pem, head.encode(), hashlib.sha256).digest())}"


def forged(claims: dict[str, Any], header: dict[str, Any], signature: bytes = b"") -> str:
    head = f"{_part(json.dumps(header).encode())}.{_part(json.dumps(claims).encode())}"
    return f"{head}.{_part(signature)}"


def _part(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
