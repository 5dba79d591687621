"""Whom Redis lets in: passwords, rights, TLS; and what is said when it lets nobody in."""

import datetime
import ipaddress
import logging
import secrets
import traceback
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from contract.store_values import a_key, a_session, added, ended
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from redis_server import PATIENCE_S, RedisServer, running_cluster, running_redis
from server_process import free_port

from warren.model.errors import Unavailable
from warren.stores.redis_store import RedisStore

pytestmark = pytest.mark.anyio


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    with running_redis(tmp_path / "redis") as server:
        yield server


@pytest.fixture
async def store(server: RedisServer) -> AsyncIterator[RedisStore]:
    store = await RedisStore.open(server.url, timeout_s=PATIENCE_S)
    yield store
    await store.close()


class TestWhoIsRefused:
    async def test_a_wrong_password_is_told_with_the_remedy_and_never_shown(
        self, server: RedisServer, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.DEBUG)
        for user in (":wrong-secret", "nobody:wrong-secret", ""):
            with pytest.raises(Unavailable, match="does not take this user name and password") as caught:
                await RedisStore.open(f"redis://{user}@127.0.0.1:{server.port}", timeout_s=PATIENCE_S)
            assert "URL" in caught.value.remedy
            assert "wrong-secret" not in "".join(traceback.format_exception(caught.value))
        assert "wrong-secret" not in caplog.text

    async def test_a_cluster_tells_of_a_wrong_password_too(self, tmp_path: Path) -> None:
        with running_cluster(tmp_path) as server:
            with pytest.raises(Unavailable, match="does not take this user name and password") as caught:
                await RedisStore.open(f"redis+cluster://:wrong-one@127.0.0.1:{server.port}", timeout_s=PATIENCE_S)
            assert "wrong-one" not in str(caught.value)

    async def test_a_user_with_too_few_rights_is_told(self, server: RedisServer) -> None:
        server.ask("ACL", "SETUSER", "guest", "on", ">guest-secret", "~elsewhere", "+@all")
        with pytest.raises(Unavailable, match="does not let this user"):
            await RedisStore.open(f"redis://guest:guest-secret@127.0.0.1:{server.port}", timeout_s=PATIENCE_S)
        server.ask("ACL", "SETUSER", "guest", "~{warren}*")
        store = await RedisStore.open(f"redis://guest:guest-secret@127.0.0.1:{server.port}", timeout_s=PATIENCE_S)
        await ended(store, await added(store, a_key(), thread_id="t"))
        assert "guest-secret" not in repr(store)
        await store.close()

    async def test_a_replica_is_not_written_to(self, store: RedisStore, server: RedisServer) -> None:
        await added(store)
        server.ask("REPLICAOF", "127.0.0.1", free_port())
        with pytest.raises(Unavailable, match="is a replica") as caught:
            await store.add(a_session())
        assert "Sentinel" in caught.value.remedy

    async def test_nobody_there_is_told_at_once(self, tmp_path: Path) -> None:
        port, password = free_port(), secrets.token_hex(8)
        with pytest.raises(Unavailable, match=f"Redis at 127.0.0.1:{port} cannot be reached"):
            await RedisStore.open(f"redis://:{password}@127.0.0.1:{port}")
        with pytest.raises(Unavailable, match=f"Redis at {tmp_path}/none.sock cannot be reached"):
            await RedisStore.open(f"unix://{tmp_path}/none.sock")
        for kind, rest in (("sentinel", "/mymaster"), ("cluster", "")):
            with pytest.raises(Unavailable, match=rf"Redis at 127\.0\.0\.1:{port}") as caught:
                await RedisStore.open(f"redis+{kind}://:{password}@127.0.0.1:{port}{rest}")
            assert password not in "".join(traceback.format_exception(caught.value))

    async def test_a_closed_store_says_so(self, server: RedisServer) -> None:
        store = await RedisStore.open(server.url, timeout_s=PATIENCE_S)
        await store.close()
        await store.close()
        assert repr(store) == f"<RedisStore over <RedisLink 127.0.0.1:{server.port} closed>>"
        with pytest.raises(Unavailable, match="closed"):
            await store.get("acme", "ses_1")


class TestTls:
    async def test_it_is_spoken_to_a_server_whose_certificate_is_known(self, tmp_path: Path) -> None:
        _make_certificate(tmp_path / "server")
        with running_redis(tmp_path / "redis", tls_files=str(tmp_path / "server")) as server:
            store = await RedisStore.open(f"{server.tls_url}?ssl_ca_certs={tmp_path}/server.crt", timeout_s=PATIENCE_S)
            session = await added(store, env={"A": "x" * 100_000})
            assert await store.get("acme", session.id) == session
            await store.close()
            with pytest.raises(Unavailable, match=r"cannot be reached: .*CERTIFICATE_VERIFY_FAILED"):
                await RedisStore.open(server.tls_url, timeout_s=PATIENCE_S)
            unsure = await RedisStore.open(f"{server.tls_url}?ssl_cert_reqs=none", timeout_s=PATIENCE_S)
            assert await unsure.get("acme", session.id) == session
            await unsure.close()


def _make_certificate(path: Path) -> None:
    """For 127.0.0.1, signed by itself: `path`.crt and `path`.key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "redis of a test")])
    now = datetime.datetime.now(datetime.UTC)
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    path.with_suffix(".crt").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    path.with_suffix(".key").write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
