"""The TLS context of the server, from its certificate and key: TLS 1.2 and later, for HTTP/1.1."""

import os
import ssl
import stat
from pathlib import Path
from typing import NoReturn

from warren.model.errors import InvalidRequest

_BOTH_FILES = "give --tls-cert and --tls-key, or neither"


def new_tls_context(certificate: Path | None, key: Path | None) -> ssl.SSLContext | None:
    """Returns the TLS context; None if neither file is given. Raises `InvalidRequest` if a file cannot be used.

    The certificate is a PEM file: the server's own certificate first, then the chain up to one that clients know. It
    refuses a key that everybody on the machine can read, and one with a password, which nobody could type in.
    """
    if certificate is None and key is None:
        return None
    if certificate is None:
        raise InvalidRequest("there is a TLS key, but no certificate", remedy=_BOTH_FILES)
    if key is None:
        raise InvalidRequest("there is a TLS certificate, but no key", remedy=_BOTH_FILES)
    _check_certificate(certificate)
    _check_key(key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(["http/1.1"])
    _load(context, certificate, key)
    return context


def _check_certificate(path: Path) -> None:
    """Checks the certificate alone, so that the error names the right file."""
    _mode(path, "certificate", "--tls-cert")
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(path)
    except (ssl.SSLError, ValueError) as exc:
        raise InvalidRequest(
            f"{path} is not a certificate in PEM", remedy="it has lines such as -----BEGIN CERTIFICATE-----"
        ) from exc


def _check_key(path: Path) -> None:
    if _mode(path, "key", "--tls-key") & stat.S_IROTH:
        raise InvalidRequest(f"everybody can read the TLS key {path}", remedy=f"chmod 600 {path}")


def _mode(path: Path, what: str, flag: str) -> int:
    try:
        with path.open("rb") as file:
            file.read(1)
            return os.fstat(file.fileno()).st_mode
    except OSError as exc:
        raise InvalidRequest(f"the TLS {what} {path} cannot be read: {exc.strerror}", remedy=f"check {flag}") from exc


def _load(context: ssl.SSLContext, certificate: Path, key: Path) -> None:
    def refuse_password() -> NoReturn:
        raise InvalidRequest(
            f"the TLS key {key} asks for a password", remedy=f"write it without one: openssl pkey -in {key} -out FILE"
        )

    try:
        context.load_cert_chain(certificate, key, password=refuse_password)
    except ssl.SSLError as exc:
        if exc.reason == "KEY_VALUES_MISMATCH":
            raise InvalidRequest(
                f"the TLS key {key} is not the one of the certificate {certificate}",
                remedy="name the key that the certificate was made for",
            ) from exc
        raise InvalidRequest(
            f"the TLS key {key} cannot be used with the certificate {certificate}: {exc.reason or 'it is no key'}",
            remedy="a key in PEM has lines such as -----BEGIN PRIVATE KEY-----",
        ) from exc
