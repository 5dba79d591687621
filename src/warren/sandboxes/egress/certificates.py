"""Certificates of a sandbox's broker: an authority of its own, and one certificate for the bound hosts.

The worker makes them and puts the authority's certificate into the sandbox. The authority's key is dropped as soon as
it has signed, so nobody can make another certificate that the sandbox trusts; NameConstraints limit the authority to
the bound hosts as well. The certificate's own key exists only in the memory of the worker and of the proxy.
"""

import datetime
import errno
import fcntl
import os
import secrets
import ssl
from collections.abc import Sequence
from dataclasses import dataclass, field
from ipaddress import ip_network
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

_VALID: Final = datetime.timedelta(days=40)  # longer than any session lives
_BEFORE: Final = datetime.timedelta(hours=1)  # a clock inside may be slow
_ALPN: Final = ("http/1.1",)
_PIPE_BYTES: Final = 64 << 10  # what a pipe holds unless told otherwise


@dataclass(frozen=True, slots=True)
class Certificates:
    """PEM texts: what the sandbox must trust, what the broker presents, and the key of the latter."""

    authority: str
    certificate: str
    key: str = field(repr=False)


def new_certificates(hosts: Sequence[str]) -> Certificates:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    names = [x509.DNSName(host) for host in hosts]
    no_addresses = [x509.IPAddress(ip_network(every)) for every in ("0.0.0.0/0", "::/0")]
    authority_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    issuer = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, f"broker of a sandbox {secrets.token_hex(8)}")])
    authority = (
        _begin(issuer, issuer, authority_key)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(x509.NameConstraints(names, no_addresses), critical=True)
    )
    certificate = (
        _begin(x509.Name([]), issuer, key)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.SubjectAlternativeName(names), critical=True)
        .add_extension(x509.ExtendedKeyUsage([x509.oid.ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False)
    )
    return Certificates(
        authority.sign(authority_key, SHA256()).public_bytes(Encoding.PEM).decode(),
        certificate.sign(authority_key, SHA256()).public_bytes(Encoding.PEM).decode(),
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode(),
    )


def server_context(certificates: Certificates, host: str) -> ssl.SSLContext:
    """Returns the TLS context for clients of `host`. It refuses a hello for another name, or for none."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(_ALPN)
    context.sni_callback = lambda _, name, __: None if name == host else ssl.ALERT_DESCRIPTION_UNRECOGNIZED_NAME
    _load(context, certificates.certificate.encode(), certificates.key.encode())
    return context


def upstream_context(more_authorities: str = "") -> ssl.SSLContext:
    """Returns the TLS context for bound hosts. It trusts the system's authorities, and the operator's in
    `more_authorities` (PEM)."""
    context = ssl.create_default_context()
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(_ALPN)
    if more_authorities:
        context.load_verify_locations(cadata=more_authorities)
    return context


def _begin(subject: "x509.Name", issuer: "x509.Name", key: "EllipticCurvePrivateKey") -> "x509.CertificateBuilder":
    from cryptography import x509

    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BEFORE)
        .not_valid_after(now + _VALID)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
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


def _load(context: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    """Loads certificate and key through pipes: Python reads them from files only, and the key must not be in a file."""
    pipes = [_pipe_with(data) for data in (certificate, key)]
    try:
        context.load_cert_chain(*(f"/proc/self/fd/{fd}" for fd in pipes))
    finally:
        for fd in pipes:
            os.close(fd)


def _pipe_with(data: bytes) -> int:
    """Returns the reading end of a pipe that holds the data. Raises OSError rather than wait for a reader."""
    reading, writing = os.pipe()
    try:
        os.set_blocking(writing, False)
        if len(data) > _PIPE_BYTES:  # a certificate for many long names
            fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, len(data))
        if os.write(writing, data) < len(data):
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
    except BaseException:
        os.close(reading)
        raise
    finally:
        os.close(writing)
    return reading
