"""Page sessions, sign-in codes and tickets: how long they last, and that they end with what they were made with."""

import json
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ed25519
from jwt.algorithms import OKPAlgorithm

from warren.access.bindings import Binding
from warren.access.identity import CredentialIdentity
from warren.access.keys import Keys
from warren.access.opaque_tokens import CACHED_S, TRUSTED_S
from warren.access.page_sessions import CODE_S, IDLE_S, LASTS_S, MAX_OF_KEY, PageSessions
from warren.access.revocations import Revocations
from warren.access.tenants import Tenants
from warren.access.tickets import MAX_TICKETS, TICKET_S, TerminalTicket, Tickets
from warren.access.tokens import TokenRules, Tokens
from warren.interfaces.records import Record
from warren.model.access import Scope
from warren.model.api import OPERATIONS
from warren.model.errors import InvalidRequest, Unauthorized, Unavailable
from warren.stores.memory import MemoryRecords
from warren.testing.manual_clock import ManualClock

pytestmark = pytest.mark.anyio

SIGNER = ed25519.Ed25519PrivateKey.generate()
SESSION = f"ses_{'1' * 32}"


class AwayRecords(MemoryRecords):
    """`away`: the store cannot be reached."""

    away = False

    async def get(self, kind: str, record_id: str) -> Record | None:
        if self.away:
            raise Unavailable("away")
        return await super().get(kind, record_id)

    async def put(self, record: Record) -> bool:
        if self.away:
            raise Unavailable("away")
        return await super().put(record)


class World:
    def __init__(self, clock: ManualClock, tokens: Tokens) -> None:
        self.clock = clock
        self.records = AwayRecords()
        self.keys = Keys(self.records, clock)
        self.tokens = tokens
        self.revocations = Revocations(self.records, clock)
        self.identity = self.new_identity()
        self.pages = PageSessions(self.records, clock, self.identity)
        self.tickets = Tickets(self.records, clock, self.identity)

    def new_identity(self, admin_key: str = "operator", secret: bytes = b"installation") -> CredentialIdentity:
        tenants = Tenants(self.records, self.clock)
        return CredentialIdentity(self.keys, tenants, self.tokens, admin_key, secret, self.revocations)

    async def key(self) -> tuple[str, Binding]:
        key, text = await self.keys.create("x", "acme")
        return key.id, await self.identity.bind(text)

    def jwt(self, **changes: Any) -> str:
        now = self.clock.wall()
        claims = {"iss": "i", "aud": "warren", "sub": "ada", "tenant": "acme", "scope": "exec", "iat": now, "jti": "1"}
        return jwt.encode({**claims, "exp": now + 600, **changes}, SIGNER, "EdDSA", headers={"kid": "one"})

    async def is_signed_in(self, token: str) -> bool:
        try:
            grant = await self.pages.grant(token)
            await grant.check_again()
        except Unauthorized:
            return False
        return grant.is_page

    async def ticket(self, binding: Binding, process_id: str = "", **more: Any) -> str:
        how: dict[str, Any] = {"read_only": False, "lasts_s": 600.0, "origins": (), **more}
        return (await self.tickets.create(binding, SESSION, process_id, **how))[0]


@pytest.fixture
async def world(tmp_path: Path) -> World:
    file, clock = tmp_path / "jwks.json", ManualClock()
    key = {**OKPAlgorithm.to_jwk(SIGNER.public_key(), as_dict=True), "kid": "one", "alg": "EdDSA"}
    file.write_text(json.dumps({"keys": [key]}))
    tokens = Tokens(TokenRules(str(file), "i", "warren"), clock)
    await tokens.start()
    return World(clock, tokens)


async def test_a_page_session_lasts_while_it_is_used_and_no_longer_than_a_day(world: World) -> None:
    _, binding = await world.key()
    used, _ = await world.pages.sign_in(binding)
    idle, _ = await world.pages.sign_in(binding)
    for _ in range(int(LASTS_S / IDLE_S * 2) - 1):
        await world.clock.advance(IDLE_S / 2)
        assert await world.is_signed_in(used)
    assert not await world.is_signed_in(idle)
    await world.clock.advance(IDLE_S / 2)
    assert not await world.is_signed_in(used)


async def test_watching_a_stream_is_no_use(world: World) -> None:
    _, binding = await world.key()
    token, _ = await world.pages.sign_in(binding)
    grant = await world.pages.grant(token)
    for _ in range(11):
        await world.clock.advance(IDLE_S / 10 - 1)
        if world.clock.wall() - 1_800_000_000 < IDLE_S:
            await grant.check_again()
    with pytest.raises(Unauthorized):
        await grant.check_again()


async def test_the_store_has_no_token_and_keeps_none_for_ever(world: World) -> None:
    _, binding = await world.key()
    token, _ = await world.pages.sign_in(binding)
    code, _ = await world.pages.make_code(binding)
    ticket = await world.ticket(binding)
    for kind in ("page_session", "sign_in_code", "ticket"):
        [record] = await world.records.list(kind)
        assert not any(text in repr(record) for text in (token, code, ticket))
    for _ in range(MAX_OF_KEY + 5):
        await world.pages.sign_in(binding)
    assert await world.records.count("page_session") == MAX_OF_KEY
    for _ in range(MAX_TICKETS + 5):
        await world.ticket(binding)
    assert await world.records.count("ticket") == MAX_TICKETS
    await world.clock.advance(LASTS_S)
    await world.pages.sign_in(binding)
    assert await world.records.count("page_session") == 1


async def test_a_code_is_good_once_and_not_after_its_time_or_its_key(world: World) -> None:
    key_id, binding = await world.key()
    codes = [(await world.pages.make_code(binding))[0] for _ in range(3)]
    assert await world.pages.use_code(codes[0]) == binding
    await world.keys.revoke(key_id)
    with pytest.raises(Unauthorized):
        await world.pages.sign_in(await world.pages.use_code(codes[1]))
    await world.clock.advance(CODE_S)
    for code in codes:
        with pytest.raises(Unauthorized, match="works once"):
            await world.pages.use_code(code)


async def test_a_token_of_an_issuer_signs_in_until_it_expires_or_is_revoked(world: World) -> None:
    binding = await world.identity.bind(world.jwt())
    token, session = await world.pages.sign_in(binding)
    assert session.expires_at == world.clock.wall() + 600
    grant = await world.pages.grant(token)
    assert (grant.caller.tenant, grant.caller.key_id, sorted(grant.caller.scopes)) == ("acme", "jwt:ada", ["exec"])
    await world.revocations.revoke(subject="ada")
    assert not await world.is_signed_in(token)
    other, _ = await world.pages.sign_in(await world.identity.bind(world.jwt(sub="eve", jti="2")))
    assert await world.is_signed_in(other)
    await world.clock.advance(601)
    assert not await world.is_signed_in(other)


async def test_the_key_of_the_configuration_signs_in_until_it_is_another(world: World) -> None:
    binding = await world.identity.bind("operator")
    assert "operator" not in repr(binding)
    token, _ = await world.pages.sign_in(binding)
    assert await world.is_signed_in(token)
    for identity in (world.new_identity("another"), world.new_identity(""), world.new_identity(secret=b"other")):
        pages = PageSessions(world.records, world.clock, identity)
        with pytest.raises(Unauthorized):
            await pages.grant(token)


async def test_what_was_revoked_elsewhere_ends_within_two_seconds(world: World) -> None:
    key_id, binding = await world.key()
    token, _ = await world.pages.sign_in(binding)
    signed_out, _ = await world.pages.sign_in(binding)
    other = Keys(world.records, world.clock)
    other_pages = PageSessions(world.records, world.clock, world.identity)
    assert await world.is_signed_in(token)
    assert await world.is_signed_in(signed_out)
    await other_pages.sign_out(signed_out)
    await world.clock.advance(CACHED_S)
    assert await world.is_signed_in(token)
    assert not await world.is_signed_in(signed_out)
    await other.rotate(key_id)
    await world.clock.advance(CACHED_S)
    assert not await world.is_signed_in(token)


async def test_while_the_store_is_away_only_who_was_seen_lately_is_let_in(world: World) -> None:
    _, binding = await world.key()
    seen, _ = await world.pages.sign_in(binding)
    unseen, _ = await world.pages.sign_in(binding)
    assert await world.is_signed_in(seen)
    world.records.away = True
    await world.clock.advance(TRUSTED_S - 1)
    assert await world.is_signed_in(seen)
    with pytest.raises(Unavailable):
        await world.pages.grant(unseen)
    await world.clock.advance(2)
    with pytest.raises(Unavailable):
        await world.pages.grant(seen)


async def test_a_ticket_waits_a_minute_and_its_token_lasts_as_long_as_it_says(world: World) -> None:
    _, binding = await world.key()
    late, token = await world.ticket(binding), (await world.tickets.redeem(await world.ticket(binding)))[0]
    await world.clock.advance(TICKET_S)
    assert await world.tickets.look_up(late) is None
    with pytest.raises(Unauthorized):
        await world.tickets.redeem(late)
    request = "GET", f"/api/sessions/{SESSION}/processes/p", b""
    grant, _ = await world.tickets.grant(token, *request)
    assert sorted(grant.caller.scopes) == ["exec", "read"]
    await world.clock.advance(600 - TICKET_S)
    with pytest.raises(Unauthorized):
        await world.tickets.grant(token, *request)
    with pytest.raises(Unauthorized):
        await grant.check_again()
    with pytest.raises(InvalidRequest):
        await world.ticket(binding, read_only=True)


async def test_a_ticket_gives_no_scope_that_its_maker_lacks(world: World) -> None:
    binding = await world.identity.bind(world.jwt(scope="exec"))
    token, _ = await world.tickets.redeem(await world.ticket(binding))
    grant, _ = await world.tickets.grant(token, "WEBSOCKET", f"/api/sessions/{SESSION}/terminal", b"")
    assert grant.caller.scopes == {Scope.EXEC}


OPENED = {"get_process", "read_output", "resize_terminal", "attach_socket", "terminal_socket"}


@pytest.mark.parametrize("row", OPERATIONS.values(), ids=lambda row: row.name)
async def test_of_all_operations_a_ticket_opens_those_of_a_terminal(world: World, row: Any) -> None:
    _, binding = await world.key()
    names = dict.fromkeys(row.names_in_path, "other") | {"session_id": SESSION, "process_id": "p"}
    path = row.path.format(**names)
    query = b"process_id=p&rows=24" if row.name == "terminal_socket" else b"session_id=" + SESSION.encode()
    for process_id in ("", "p"):
        ticket = TerminalTicket(binding, SESSION, process_id, False, 0.0)
        assert ticket.opens(row.method, path, query) == (row.name in OPENED)
        assert not ticket.opens(row.method, path.replace(SESSION, f"ses_{'2' * 32}"), query)
    watching = TerminalTicket(binding, SESSION, "p", True, 0.0)
    assert watching.opens(row.method, path, query) == (row.name in OPENED - {"resize_terminal", "terminal_socket"})
    assert not TerminalTicket(binding, SESSION, "q", False, 0.0).opens(row.method, path, query)


@pytest.mark.parametrize("query", [b"", b"process_id=", b"process_id=q", b"process_id=p&process_id=q", b"Process_id=p"])
async def test_a_ticket_for_one_process_opens_no_other_terminal(world: World, query: bytes) -> None:
    _, binding = await world.key()
    ticket = TerminalTicket(binding, SESSION, "p", False, 0.0)
    assert not ticket.opens("WEBSOCKET", f"/api/sessions/{SESSION}/terminal", query)
