"""Certificates of a sandbox's broker: an authority that can vouch for the bound hosts only, and what it signs.

The worker makes the authority and puts its certificate into the sandbox; its key is in the memory of the worker and of
the proxy, and nowhere else. A program inside that trusts it trusts it for these hosts: NameConstraints say so.
"""

import datetime
import os
import secrets
import ssl
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from ipaddress import ip_network
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

AUTHORITY_DAYS: Final = 40  # longer than any session lives
LEAF_DAYS: Final = 2
_BEFORE_S: Final = 3600  # clocks inside may be late
_RENEWED_S: Final = 86400.0
_ALPN: Final = ["http/1.1"]


@dataclass(frozen=True, slots=True)
class Authority:
    """Both in PEM."""

    certificate: str
    key: str = field(repr=False)


def new_authority(hosts: Iterable[str]) -> Authority:
    """An authority whose certificates hold for these hosts, and for no addresses."""
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, f"broker of a sandbox {secrets.token_hex(8)}")])
    no_addresses = [x509.IPAddress(ip_network(every)) for every in ("0.0.0.0/0", "::/0")]
    certificate = _sign(
        _begin(name, name, key, AUTHORITY_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(x509.NameConstraints([x509.DNSName(host) for host in hosts], no_addresses), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False),
        key,
    )
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return Authority(certificate.public_bytes(Encoding.PEM).decode(), secret.decode())


class LeafContexts:
    """TLS contexts for the bound hosts, made when first needed and kept. A hello for another name is refused."""

    def __init__(self, authority: Authority, wall: Callable[[], float] = time.time) -> None:
        self._authority = authority
        self._wall = wall
        self._contexts: dict[str, tuple[ssl.SSLContext, float]] = {}

    def __repr__(self) -> str:
        return f"<LeafContexts of {len(self._contexts)} hosts>"

    def of(self, host: str) -> ssl.SSLContext:
        known = self._contexts.get(host)
        if known is None or self._wall() >= known[1]:
            known = self._contexts[host] = self._make(host), self._wall() + _RENEWED_S
        return known[0]

    def _make(self, host: str) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(_ALPN)
        context.sni_callback = lambda _, name, __: None if name == host else ssl.ALERT_DESCRIPTION_UNRECOGNIZED_NAME
        _load(context, *self._leaf(host))
        return context

    def _leaf(self, host: str) -> tuple[bytes, bytes]:
        """The certificate and its key, in PEM."""
        from cryptography import x509
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.hazmat.primitives.serialization import (
            Encoding,
            NoEncryption,
            PrivateFormat,
            load_pem_private_key,
        )

        authority_key = load_pem_private_key(self._authority.key.encode(), None)
        assert isinstance(authority_key, ec.EllipticCurvePrivateKey)
        issuer = x509.load_pem_x509_certificate(self._authority.certificate.encode())
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, host)] if len(host) <= 64 else [])
        certificate = _sign(
            _begin(name, issuer.subject, key, LEAF_DAYS)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs_certificates=False), critical=True)
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=not list(name))
            .add_extension(x509.ExtendedKeyUsage([x509.oid.ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False
            ),
            authority_key,
        )
        secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        return certificate.public_bytes(Encoding.PEM), secret


def preload() -> None:
    """Imports all that certificates need, for a process that cannot read its own files later."""
    import cryptography.hazmat.primitives.asymmetric.ec
    import cryptography.hazmat.primitives.hashes
    import cryptography.hazmat.primitives.serialization
    import cryptography.x509  # noqa: F401

    LeafContexts(new_authority(["preload.invalid"])).of("preload.invalid")


def upstream_context(more_authorities: str = "") -> ssl.SSLContext:
    """For connections to bound hosts: the system's authorities, and those of an operator in PEM."""
    context = ssl.create_default_context()
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(_ALPN)
    if more_authorities:
        context.load_verify_locations(cadata=more_authorities)
    return context


def _begin(
    subject: "x509.Name", issuer: "x509.Name", key: "EllipticCurvePrivateKey", days: int
) -> "x509.CertificateBuilder":
    from cryptography import x509

    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(seconds=_BEFORE_S))
        .not_valid_after(now + datetime.timedelta(days=days))
    )


def _usage(*, signs_certificates: bool) -> "x509.KeyUsage":
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _sign(builder: "x509.CertificateBuilder", key: "EllipticCurvePrivateKey") -> "x509.Certificate":
    from cryptography.hazmat.primitives.hashes import SHA256

    return builder.sign(key, SHA256())


def _load(context: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    """Python reads certificates from files only: from pipes, so that the key is in no file."""
    pipes = [_pipe_with(data) for data in (certificate, key)]
    try:
        context.load_cert_chain(*(f"/proc/self/fd/{fd}" for fd in pipes))
    finally:
        for fd in pipes:
            os.close(fd)


def _pipe_with(data: bytes) -> int:
    """Gives the end to read from. A pipe holds more than a certificate."""
    reading, writing = os.pipe()
    try:
        os.write(writing, data)
    finally:
        os.close(writing)
    return reading
