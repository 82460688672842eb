"""Credentials of a gRPC server."""

from __future__ import annotations

import grpc

from moraine.settings.tls import ListenerTlsSettings
from moraine.tls.contexts import ListenerContext
from moraine.tls.files import Renewed, TlsUnusable


def server_credentials(settings: ListenerTlsSettings) -> grpc.ServerCredentials:
    """Each connection gets the files as they are when it begins."""
    if settings.client_auth == "optional":
        raise TlsUnusable(
            "gRPC has no optional client certificates: set ingest.otlp.tls with client-auth "
            "none or required."
        )
    # gRPC accepts files that do not fit together and then fails every handshake: check them.
    versions = Renewed(settings, lambda: _checked_configuration(settings))

    def newer() -> grpc.ServerCertificateConfiguration | None:
        configuration, is_new = versions.get_if_new()
        return configuration if is_new else None

    required = settings.client_auth == "required"
    return grpc.dynamic_ssl_server_credentials(
        versions.get(),
        newer,  # type: ignore[arg-type]  # None keeps the one before
        require_client_authentication=required,
    )


def _checked_configuration(settings: ListenerTlsSettings) -> grpc.ServerCertificateConfiguration:
    ListenerContext.of(settings)
    assert settings.cert is not None  # by the settings' own rules
    assert settings.key is not None
    roots = settings.ca.read_bytes() if settings.client_auth == "required" and settings.ca else None
    pairs = [(settings.key.read_bytes(), settings.cert.read_bytes())]
    return grpc.ssl_server_certificate_configuration(pairs, root_certificates=roots)
