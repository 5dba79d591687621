"""Certificates for tests, made with openssl: an authority of the test's own, and a certificate that it signed."""

import ssl
import subprocess
from dataclasses import dataclass
from pathlib import Path

NAME = "sandboxes.example"


@dataclass(frozen=True)
class Certificates:
    """`ca`: the authority that clients must trust. `cert` and `key`: the server's, for loopback and for NAME."""

    ca: Path
    cert: Path
    key: Path

    @property
    def client(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=self.ca)


def make_certificates(folder: Path, *names: str) -> Certificates:
    """Makes the files in `folder`. The server's certificate is also valid for `names`."""
    made = Certificates(folder / "ca.pem", folder / "cert.pem", folder / "key.pem")
    ca_key = folder / "ca-key.pem"
    _openssl("req", "-x509", "-days", "2", "-subj", "/CN=an authority for tests", *_new_key(ca_key), "-out", made.ca)
    request, extensions = folder / "request.pem", folder / "extensions"
    _openssl("req", "-subj", "/CN=warren", *_new_key(made.key), "-out", request)
    alternatives = ",".join(f"DNS:{name}" for name in ("localhost", NAME, *names))
    extensions.write_text(f"subjectAltName={alternatives},IP:127.0.0.1\n")
    signed_by = ("-CA", made.ca, "-CAkey", ca_key, "-set_serial", "2")
    _openssl("x509", "-req", "-days", "2", "-in", request, *signed_by, "-extfile", extensions, "-out", made.cert)
    return made


def encrypt_key(key: Path, to: Path, password: str) -> None:
    _openssl("pkey", "-in", key, "-aes256", "-passout", f"pass:{password}", "-out", to)
    to.chmod(0o600)


def _new_key(path: Path) -> tuple[str | Path, ...]:
    return ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", path)


def _openssl(*arguments: str | Path) -> None:
    done = subprocess.run(["openssl", *arguments], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
