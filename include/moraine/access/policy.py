"""The policy: which principal may do what with which table.

Without a policy everything is allowed that the caller's token allows. With one, nothing is allowed
that no rule allows, and what a rule denies is denied.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol

import aiohttp
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from moraine.access.answers import read_answer
from moraine.access.model import Action, Principal, QualifiedName
from moraine.errors import MoraineError
from moraine.log import get_logger
from moraine.settings import PolicySettings
from moraine.tls.contexts import client_context

log = get_logger(__name__)

_MAX_ANSWER = 64 << 10


class PolicyUnavailable(MoraineError, code="POLICY_UNAVAILABLE", http_status=503, retry_after=5):
    """The policy cannot be asked, so nothing is allowed; try again later."""


class Policy(Protocol):
    async def allows(
        self, principal: Principal, action: Action, table: QualifiedName | None
    ) -> bool:
        """`table` None: whether the principal may do it with any table."""
        ...


class NoPolicy:
    async def allows(
        self, principal: Principal, action: Action, table: QualifiedName | None
    ) -> bool:
        del principal, action, table
        return True


def _levels(pattern: Any) -> Any:
    """`prod.shop.*`, or a list where a name contains a dot."""
    return tuple(pattern.split(".")) if isinstance(pattern, str) else pattern


def _check_pattern(levels: tuple[str, ...]) -> tuple[str, ...]:
    if "**" in levels[:-1]:
        raise ValueError("** stands for the rest of a name, so it must be at the end")
    return levels


Pattern = Annotated[tuple[str, ...], BeforeValidator(_levels), AfterValidator(_check_pattern)]


class Rule(BaseModel):
    """It applies if everything that it names fits. Names may contain `*` and `?`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    effect: Literal["allow", "deny"] = "allow"
    issuers: list[str] = Field(["*"], min_length=1)
    subjects: list[str] = Field(["*"], min_length=1)
    roles: list[str] | None = None
    certificates: list[str] | None = None
    actions: list[str] = Field(min_length=1)
    tables: list[Pattern] = Field([("**",)], min_length=1)

    def fits(self, principal: Principal, action: Action) -> bool:
        certificate = principal.certificate
        names = (certificate.subject, *certificate.names) if certificate else ()
        return (
            _any_fits(self.issuers, [principal.issuer])
            and _any_fits(self.subjects, [principal.subject])
            and (self.roles is None or _any_fits(self.roles, principal.roles))
            and (self.certificates is None or _any_fits(self.certificates, names))
            and _any_fits(self.actions, [action.value])
        )

    def is_about(self, table: QualifiedName) -> bool:
        return any(_levels_fit(pattern, table.levels) for pattern in self.tables)


class RuleSet(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    rules: list[Rule] = []

    def allows(self, principal: Principal, action: Action, table: QualifiedName | None) -> bool:
        fitting = [rule for rule in self.rules if rule.fits(principal, action)]
        if table is None:
            return any(rule.effect == "allow" for rule in fitting)
        effects = {rule.effect for rule in fitting if rule.is_about(table)}
        return effects == {"allow"}


class FilePolicy:
    """Rules in a file. A change that cannot be read leaves the rules as they are."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._changed_at = file.stat().st_mtime_ns
        self._rules = _parse(file, file.read_bytes())

    async def allows(
        self, principal: Principal, action: Action, table: QualifiedName | None
    ) -> bool:
        self._reload()
        return self._rules.allows(principal, action, table)

    def _reload(self) -> None:
        try:
            changed_at = self._file.stat().st_mtime_ns
            if changed_at != self._changed_at:
                text = self._file.read_bytes()
                self._changed_at = changed_at  # what is read and broken is not read again
                self._rules = _parse(self._file, text)
                log.info("policy.loaded", rules=len(self._rules.rules))
        except (OSError, ValueError) as error:
            log.error("policy.unreadable", file=str(self._file), error=str(error))


class OpaPolicy:
    """Asks an Open Policy Agent, with the principal, the action and the table as its input."""

    def __init__(self, settings: PolicySettings) -> None:
        self._url = settings.opa_url
        self._timeout = aiohttp.ClientTimeout(total=settings.opa_timeout.total_seconds())
        self._ssl = client_context(settings.tls)

    async def allows(
        self, principal: Principal, action: Action, table: QualifiedName | None
    ) -> bool:
        try:
            async with (
                aiohttp.ClientSession(timeout=self._timeout) as session,
                session.post(
                    self._url,
                    json={"input": _input(principal, action, table)},
                    allow_redirects=False,
                    ssl=self._ssl,
                ) as answer,
            ):
                found = json.loads(await read_answer(answer, _MAX_ANSWER))
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError, RecursionError) as error:
            log.error("policy.unavailable", error=type(error).__name__)
            raise PolicyUnavailable() from None
        # A rule that is undefined has no result: that is no permission.
        return isinstance(found, dict) and _is_permission(found.get("result"))


def policy_of(settings: PolicySettings) -> Policy:
    if settings.opa_url:
        return OpaPolicy(settings)
    return FilePolicy(settings.file) if settings.file else NoPolicy()


def _is_permission(result: Any) -> bool:
    return result is True or (isinstance(result, dict) and result.get("allow") is True)


def _input(principal: Principal, action: Action, table: QualifiedName | None) -> dict[str, Any]:
    certificate = principal.certificate
    return {
        "principal": {
            "realm": principal.realm,
            "issuer": principal.issuer,
            "subject": principal.subject,
            "roles": list(principal.roles),
            "certificate": certificate
            and {"subject": certificate.subject, "names": list(certificate.names)},
        },
        "action": action.value,
        "table": table
        and {
            "catalog": table.catalog,
            "namespace": list(table.namespace),
            "name": table.table,
        },
    }


def _parse(file: Path, text: bytes) -> RuleSet:
    try:
        return RuleSet.model_validate(tomllib.loads(text.decode()))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise ValueError(f"{file}: {where}: {first['msg']}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{file}: {error}") from None


def _any_fits(patterns: Iterable[str], names: Iterable[str]) -> bool:
    names = list(names)
    return any(_fits(name, pattern) for pattern in patterns for name in names)


def _levels_fit(pattern: Sequence[str], levels: Sequence[str]) -> bool:
    """`**` stands for any number of levels, at the end."""
    if pattern and pattern[-1] == "**":
        pattern = pattern[:-1]
        levels = levels[: len(pattern)] if len(levels) >= len(pattern) else ()
    return len(pattern) == len(levels) and all(map(_fits, levels, pattern))


def _fits(name: str, pattern: str) -> bool:
    """`[` is a character like others: a rule about the table `t[1]` is not about `t1`."""
    return fnmatchcase(name, pattern.replace("[", "[[]"))
