"""Settings of who may call Moraine, and what they may do."""

from __future__ import annotations

from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import Self

from pydantic import Field, model_validator

from moraine.settings.tls import ClientTlsSettings
from moraine.settings.values import Address, Duration, Section


class Action(StrEnum):
    """What a caller does. The values are the scopes that allow it, unless `scopes` says others."""

    READ_TASKS = "tasks:read"
    EXECUTE_TASKS = "tasks:execute"
    STEER_TASKS = "tasks:steer"
    WRITE_INGEST = "ingest:write"
    WRITE_OTLP = "otlp:write"
    READ_AUDIT = "audit:read"


class IssuerSettings(Section):
    """JWT bearer tokens of one issuer. Off while `issuer` is empty."""

    issuer: Address = ""
    audience: str = Field("moraine", description="Empty: not checked, for issuers that set none")
    jwks_url: Address = Field(
        "", description="By default the one that the issuer's discovery document names"
    )
    jwks_file: Path | None = Field(None, description="Keys in a file, instead of fetched ones")
    algorithms: list[str] = Field(["RS256", "ES256"])
    scope: str = Field(
        "execute_tasks", description="The scope that allows to read, execute and steer tasks"
    )
    scopes: dict[Action, str] = Field(
        {}, description="Names of the scopes that each allow one action, where they differ from it"
    )
    subject_claim: str = Field("sub", description="The claim that names the caller")
    roles_claim: str = Field(
        "", description="The claim with the caller's roles, for the policy; dots lead into objects"
    )
    require_bound_tokens: bool = Field(
        False, description="Refuse tokens that are not bound to a client certificate (RFC 8705)"
    )
    stale_keys: Duration = Field(
        timedelta(days=1), description="How long fetched keys are used while the issuer is away"
    )
    tls: ClientTlsSettings = ClientTlsSettings()

    @property
    def enabled(self) -> bool:
        return bool(self.issuer)


class PolicySettings(Section):
    """Who may do what with which table. Without a policy, scopes alone decide."""

    file: Path | None = Field(None, description="Rules in TOML; read again when it changes")
    opa_url: Address = Field(
        "", description="A rule of an Open Policy Agent, such as http://opa:8181/v1/data/moraine"
    )
    opa_timeout: Duration = timedelta(seconds=2)
    tls: ClientTlsSettings = Field(ClientTlsSettings(), description="Towards the agent")

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if self.file is not None and self.opa_url:
            raise ValueError("set file or opa-url, not both")
        return self
