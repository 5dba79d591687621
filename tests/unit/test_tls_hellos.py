"""Clients that speak TLS to a port with plain HTTP: what is remembered of them."""

import ssl

from warren.http.server.tls_hellos import TlsHellos


def hello(name: str) -> bytes:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(incoming, outgoing, server_hostname=name)
    try:
        client.do_handshake()
    except ssl.SSLWantReadError:
        return outgoing.read()
    raise AssertionError("nobody has answered")


def test_the_name_is_remembered_for_the_client_that_asked() -> None:
    hellos = TlsHellos()
    assert hellos.note(hello("49983-abc.localhost"), "10.0.0.1")
    assert (hellos.has("49983-abc", "10.0.0.1"), hellos.has("49983-abc", "10.0.0.2")) == (True, False)
    assert not hellos.has("49983-other", "10.0.0.1")


def test_what_is_no_hello_is_not_taken_for_one() -> None:
    hellos, first = TlsHellos(), hello("a.localhost")
    for data in (b"", b"\x16", b"GET / HTTP/1.1\r\n", b"\x00" * 100):
        assert not hellos.note(data, "10.0.0.1")
    for data in (first[:50], first[:5] + b"\xff" * 100):  # TLS, and no name can be read
        assert hellos.note(data, "10.0.0.1")
    assert not hellos.has("a", "10.0.0.1")
