"""A real identity provider for tests: Keycloak with the realms `lake` and `pond`.

Its distribution comes from Maven Central, pinned by checksum, and is configured once (half a minute
of CPU); both are kept in the cache of the jars. A server then starts in ten seconds or so. It needs
Java 17 or newer, which is what the embedded stack has anyway.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import html
import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

import jwt
import requests
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from moraine.local.java import find_java
from moraine.local.part import LOOPBACK, find_free
from support.authority import Authority, KeyPair
from support.processes import await_answer
from support.s3_catalog import fetch_jars

REALMS = ("lake", "pond")
AUDIENCE = "moraine"
SCOPES = (
    "tasks:read",
    "tasks:execute",
    "tasks:steer",
    "ingest:write",
    "otlp:write",
    "audit:read",
    "execute_tasks",
)
PERSON = "ada"
SHORT_LIFETIME = 5
"""Seconds that a token of the client `short` is valid for."""
_BUILD = ("build", "--db=dev-file", "--health-enabled=true", "--https-client-auth=request")
_SECONDS_TO_START = 120
_SECONDS_TO_STOP = 20
_OPTIONS = (
    "-Xms64m",
    "-Xmx512m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:-UsePerfData",
    "-Djava.util.logging.manager=org.jboss.logmanager.LogManager",
    "-Djava.util.concurrent.ForkJoinPool.common.threadFactory="
    "io.quarkus.bootstrap.forkjoin.QuarkusForkJoinWorkerThreadFactory",
    *(
        f"--add-opens=java.base/{package}=ALL-UNNAMED"
        for package in ("java.util", "java.util.concurrent", "java.security", "java.lang")
    ),
)


@dataclass(frozen=True)
class Realm:
    """One realm, as its clients see it. By HTTPS its issuer has another name than by HTTP."""

    url: str

    @property
    def issuer(self) -> str:
        return self.url

    @property
    def token_uri(self) -> str:
        return f"{self.url}/protocol/openid-connect/token"

    @property
    def key_set_url(self) -> str:
        return f"{self.url}/protocol/openid-connect/certs"


class Keycloak:
    """One server. It keeps its ports and its data from one start to the next.

    Every realm has the clients `moraine` (a secret), `short` (the same, with tokens that expire
    after seconds), `rsa-key` and `ec-key` (private_key_jwt), `cert` (tls_client_auth, with
    certificate-bound tokens) and `people` (the device flow, for the user `ada`).
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._home = folder / "home"
        self._log = folder / "keycloak.log"
        self._port, self._tls_port, self._health_port = find_free(3)
        self._process: subprocess.Popen[bytes] | None = None
        self._admin_password = secrets.token_urlsafe(16)
        self.secret = secrets.token_urlsafe(16)
        """Of the clients `moraine` and `short`."""
        self.password = secrets.token_urlsafe(16)
        """Of the user `ada`."""
        self.authority = Authority(folder)
        self.server_certificate = self.authority.issue("keycloak")
        self.client_certificate: KeyPair = self.authority.issue("moraine")
        """What the client `cert` has."""
        self.rsa_key = _write_key(folder / "rsa.key", rsa.generate_private_key(65537, 2048))
        self.ec_key = _write_key(folder / "ec.key", ec.generate_private_key(ec.SECP256R1()))

    def realm(self, name: str, *, tls: bool = False) -> Realm:
        return Realm(f"{self.tls_url if tls else self.url}/realms/{name}")

    @property
    def url(self) -> str:
        return f"http://{LOOPBACK}:{self._port}"

    @property
    def tls_url(self) -> str:
        return f"https://{LOOPBACK}:{self._tls_port}"

    def start(self) -> None:
        """Start the server, and wait until its realms answer."""
        environment = {
            "KC_BOOTSTRAP_ADMIN_USERNAME": "admin",
            "KC_BOOTSTRAP_ADMIN_PASSWORD": self._admin_password,
        }
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command(),
                cwd=self._folder,
                env={**os.environ, **environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        health = f"http://{LOOPBACK}:{self._health_port}/health/ready"
        await_answer(health, self._process, self._log, _SECONDS_TO_START)

    def stop(self) -> None:
        if self._process is None:
            return
        self._process.send_signal(signal.SIGCONT)
        self._process.terminate()
        try:
            self._process.wait(_SECONDS_TO_STOP)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    @contextlib.contextmanager
    def away(self) -> Iterator[None]:
        """The server takes connections and does not answer, while the block runs."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    def import_realms(self) -> None:
        for name in REALMS:
            self._admin("POST", "/admin/realms", self._realm(name))

    def rotate_keys(self, realm: str) -> None:
        """A new signing key takes over, and the old ones are gone from the key set."""
        provider = "org.keycloak.keys.KeyProvider"
        path = f"/admin/realms/{realm}/components"
        old = [
            found
            for found in self._admin("GET", f"{path}?type={provider}")
            if found["providerId"] == "rsa-generated"
        ]
        priority = max(int(found["config"]["priority"][0]) for found in old) + 1
        config = {"priority": [str(priority)], "enabled": ["true"], "active": ["true"]}
        new = {"name": f"rsa-{priority}", "providerId": "rsa-generated", "providerType": provider}
        self._admin("POST", path, {**new, "config": {**config, "keySize": ["2048"]}})
        for found in old:
            self._admin("DELETE", f"{path}/{found['id']}")

    def decide(self, uri: str, *, allow: bool = True) -> None:
        """What the person does in a browser: log in, then allow or cancel the login of a device.

        By HTTPS only: Keycloak's cookies are not for anything else."""
        with requests.Session() as browser:
            trusted = {"verify": str(self.authority.ca), "timeout": 30}
            page = browser.get(uri, **trusted)
            for inputs in (
                {"username": PERSON, "password": self.password},
                {"accept" if allow else "cancel": "yes"},
            ):
                form = re.search(r'<form[^>]* action="([^"]+)"', page.text)
                assert form, f"{page.status_code} {page.url}: {page.text[:500]}"
                hidden = re.findall(r'type="hidden" name="([^"]+)" value="([^"]*)"', page.text)
                action = urljoin(page.url, html.unescape(form[1]))
                page = browser.post(action, data={**dict(hidden), **inputs}, **trusted)
            assert page.ok, page.text[:500]

    def _admin(self, method: str, path: str, body: Any = None) -> Any:
        form = {
            "grant_type": "password",
            "client_id": "admin-cli",
            "username": "admin",
            "password": self._admin_password,
        }
        token = requests.post(self.realm("master").token_uri, data=form, timeout=30)
        token.raise_for_status()
        headers = {"Authorization": f"Bearer {token.json()['access_token']}"}
        answer = requests.request(
            method, f"{self.url}{path}", json=body, headers=headers, timeout=60
        )
        assert answer.ok, f"{method} {path}: {answer.status_code} {answer.text[:500]}"
        return answer.json() if answer.content else None

    def _command(self) -> list[str]:
        home = self._home
        if not home.exists():
            home.mkdir()
            for name in ("lib", "conf", "providers", "themes", "version.txt"):
                (home / name).symlink_to(_distribution() / name)
        return [
            str(find_java().java),
            *_OPTIONS,
            f"-Dkc.home.dir={home}",
            f"-Djboss.server.config.dir={home / 'conf'}",
            *("-cp", str(home / "lib" / "quarkus-run.jar")),
            "io.quarkus.bootstrap.runner.QuarkusEntryPoint",
            "start",
            "--optimized",
            "--cache=local",
            "--hostname-strict=false",
            "--http-enabled=true",
            f"--http-host={LOOPBACK}",
            f"--http-port={self._port}",
            f"--https-port={self._tls_port}",
            f"--http-management-port={self._health_port}",
            "--http-management-scheme=http",
            f"--https-certificate-file={self.server_certificate.cert}",
            f"--https-certificate-key-file={self.server_certificate.key}",
            f"--truststore-paths={self.authority.ca}",
        ]

    def _realm(self, name: str) -> dict[str, Any]:
        scopes = [
            {
                "name": scope,
                "protocol": "openid-connect",
                "attributes": {"include.in.token.scope": "true"},
            }
            for scope in SCOPES
        ]
        short = {"access.token.lifespan": str(SHORT_LIFETIME)}
        bound = {
            "x509.subjectdn": "CN=moraine",
            "tls.client.certificate.bound.access.tokens": "true",
        }
        device = {"oauth2.device.authorization.grant.enabled": "true"}
        return {
            "realm": name,
            "enabled": True,
            "sslRequired": "none",
            "accessTokenLifespan": 300,
            "oauth2DevicePollingInterval": 1,
            "clientScopes": scopes,
            "clients": [
                _client("moraine", secret=self.secret),
                _client("short", secret=self.secret, attributes=short),
                _client("rsa-key", "client-jwt", attributes=_public(self.rsa_key, "RS256")),
                _client("ec-key", "client-jwt", attributes=_public(self.ec_key, "ES256")),
                _client("cert", "client-x509", attributes=bound),
                {
                    **_client("people", attributes=device),
                    "publicClient": True,
                    "serviceAccountsEnabled": False,
                },
            ],
            "users": [
                {
                    "username": PERSON,
                    "enabled": True,
                    "email": "ada@example.org",
                    "emailVerified": True,
                    "firstName": "Ada",
                    "lastName": "Lovelace",
                    "credentials": [{"type": "password", "value": self.password}],
                }
            ],
        }


@contextlib.contextmanager
def running_keycloak(folder: Path) -> Iterator[Keycloak]:
    """A server of the caller's own, with its data and its log below the folder."""
    server = Keycloak(folder)
    try:
        server.start()
        server.import_realms()
        yield server
    finally:
        server.stop()


def _client(name: str, method: str = "client-secret", **more: Any) -> dict[str, Any]:
    return {
        "clientId": name,
        "clientAuthenticatorType": method,
        "serviceAccountsEnabled": True,
        "standardFlowEnabled": False,
        "directAccessGrantsEnabled": False,
        "defaultClientScopes": [],
        "optionalClientScopes": list(SCOPES),
        "protocolMappers": [
            _mapper("subject", "oidc-sub-mapper"),
            _mapper("audience", "oidc-audience-mapper", **{"included.custom.audience": AUDIENCE}),
        ],
        **more,
    }


def _mapper(name: str, kind: str, **config: str) -> dict[str, Any]:
    return {
        "name": name,
        "protocol": "openid-connect",
        "protocolMapper": kind,
        "config": {"access.token.claim": "true", "introspection.token.claim": "true", **config},
    }


def _public(key: Path, algorithm: str) -> dict[str, str]:
    """The client's attributes that let it authenticate with this key."""
    private = jwt.get_algorithm_by_name(algorithm).prepare_key(key.read_bytes())
    public = jwt.get_algorithm_by_name(algorithm).to_jwk(private.public_key(), as_dict=True)
    keys = [{**public, "kid": key.stem, "use": "sig", "alg": algorithm}]
    return {
        "use.jwks.string": "true",
        "jwks.string": json.dumps({"keys": keys}),
        "token.endpoint.auth.signing.alg": algorithm,
    }


def _write_key(path: Path, key: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey) -> Path:
    path.touch(mode=0o600)
    path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return path


def _distribution() -> Path:
    """The unpacked and configured distribution, in the cache."""
    jars = fetch_jars("keycloak")
    [archive] = jars.class_path("keycloak")
    name = archive.name.removesuffix(".tar.gz").replace("-quarkus-dist", "")
    target = jars.cache.parent / f"{name}-{hashlib.sha256(repr(_BUILD).encode()).hexdigest()[:8]}"
    with (archive.parent / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if target.exists():
            return target
        draft = target.with_name(f"{target.name}.partial")
        shutil.rmtree(draft, ignore_errors=True)
        with tarfile.open(archive) as tar:
            tar.extractall(draft, filter="data")
        home = draft / name
        done = subprocess.run(
            ["bin/kc.sh", *_BUILD],
            cwd=home,
            env={**os.environ, "JAVA_HOME": str(find_java().home)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"Keycloak could not be configured: {done.stdout[-2000:]}"
        home.rename(target)
        draft.rmdir()
    return target
