"""A token issuer with keys of its own, made when it is needed."""

from __future__ import annotations

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
