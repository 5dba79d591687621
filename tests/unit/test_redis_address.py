"""URLs of Redis, taken apart; and nothing of them in what goes wrong."""

import pytest

from warren.model.errors import InvalidRequest
from warren.stores.redis_address import RedisAddress, RedisKind, read_address

K = RedisKind


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("redis://", RedisAddress(K.SERVER, (("localhost", 6379),))),
        ("redis://cache:7000/3", RedisAddress(K.SERVER, (("cache", 7000),), db=3)),
        ("redis://cache?db=2", RedisAddress(K.SERVER, (("cache", 6379),), db=2)),
        ("redis://[::1]:7000", RedisAddress(K.SERVER, (("::1", 7000),))),
        ("redis://[fe80::1]/1", RedisAddress(K.SERVER, (("fe80::1", 6379),), db=1)),
        ("redis://:p@h", RedisAddress(K.SERVER, (("h", 6379),), password="p")),
        ("redis://u:p%40%2F%3A@h", RedisAddress(K.SERVER, (("h", 6379),), username="u", password="p@/:")),
        ("redis://u:p@/x@h/1", RedisAddress(K.SERVER, (("h", 6379),), db=1, username="u", password="p@/x")),
        (
            "rediss://h?ssl_ca_certs=/a/b.crt&ssl_cert_reqs=required",
            RedisAddress(
                K.SERVER,
                (("h", 6379),),
                tls=True,
                options={"ssl_ca_certs": "/a/b.crt", "ssl_cert_reqs": "required"},
            ),
        ),
        ("unix:///run/redis.sock", RedisAddress(K.SOCKET, path="/run/redis.sock")),
        ("unix://u:p@/a%20b?db=4", RedisAddress(K.SOCKET, path="/a b", db=4, username="u", password="p")),
        (
            "redis+sentinel://:p@a:1,b/mymaster/2",
            RedisAddress(K.SENTINEL, (("a", 1), ("b", 26379)), service="mymaster", db=2, password="p"),
        ),
        (
            "rediss+sentinel://a/s?sentinel_password=q",
            RedisAddress(K.SENTINEL, (("a", 26379),), service="s", tls=True, options={"sentinel_password": "q"}),
        ),
        ("redis+cluster://:p@a:1,b", RedisAddress(K.CLUSTER, (("a", 1), ("b", 6379)), password="p")),
    ],
)
def test_a_url_says_where_redis_is(url: str, address: RedisAddress) -> None:
    assert read_address(url) == address


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("secret-word", "must begin with one of redis://"),
        ("http://secret-word@h", "must begin with one of redis://"),
        ("redis://:p@h:secret-word", "port"),
        ("redis://:secret-word", "port"),
        ("redis://h:secret-word", "port"),
        ("redis://h:99999", "port"),
        ("redis://h:²", "port"),
        ("redis://h:0", "port"),
        ("redis://h:" + "1" * 5000, "port"),
        ("redis://h/" + "1" * 5000, "database is a number"),
        ("redis://h/secret-word", "database is a number"),
        ("redis://a,b", "several hosts"),
        ("redis://h?password=secret-word", "may have db and nothing else"),
        ("redis://h?ssl_ca_certs=secret-word", "may have db and nothing else"),
        ("rediss://h?ssl_cert_reqs=secret-word", "ssl_cert_reqs is required or none"),
        ("unix://secret-word", "must begin with a slash"),
        ("redis+sentinel://h", "must name the service"),
        ("redis+cluster://h/1", "only the database 0"),
    ],
)
def test_a_url_that_is_none_is_refused_without_a_word_of_it(url: str, why: str) -> None:
    with pytest.raises(InvalidRequest, match=why) as caught:
        read_address(url)
    assert "secret-word" not in str(caught.value)
    assert caught.value.remedy


def test_an_address_never_shows_its_passwords() -> None:
    address = read_address("redis+sentinel://u:secret-word@[::1]:1,b:2/mymaster?sentinel_password=secret-word")
    assert str(address) == "[::1]:1,b:2 (Sentinel, mymaster)"
    assert "secret-word" not in repr(address)
