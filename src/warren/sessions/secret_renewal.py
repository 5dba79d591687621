"""Gives secrets that have changed to the running sandboxes that use them.

What this process sets or deletes is renewed at once: `SecretRenewal` subscribes to it. In a cluster other processes do
that too, so a worker also runs `watch`.
"""

import asyncio
from collections.abc import Sequence
from typing import Final

from warren.interfaces.secrets import SecretSource
from warren.kernel.logs import get_log
from warren.model.errors import WarrenError
from warren.sessions.basis import SessionBasis
from warren.sessions.networks import RETRY_S, SecretUser, SessionNetworks

_LOOK_S: Final = 2.0
_AT_ONCE: Final = 20
_log = get_log(__name__)


class SecretRenewal:
    def __init__(self, basis: SessionBasis, networks: SessionNetworks, secrets: SecretSource) -> None:
        self._basis = basis
        self._networks = networks
        self._secrets = secrets
        secrets.when_changed(self._secret_changed)

    async def _secret_changed(self, tenant: str, name: str) -> None:
        """Gives a secret that was set or deleted to the running sandboxes that use it, or takes it from them. If that
        fails for a sandbox, its network is closed and it is tried again."""
        users = [user for user in self._networks.secret_users.values() if user.session.tenant == tenant]
        await self._renew([user for user in users if name in user.session.secrets])

    async def watch(self) -> None:
        """Looks every two seconds whether another process has changed a secret."""
        known = self._networks.secret_users
        while True:
            await self._basis.clock.sleep(_LOOK_S)
            names: dict[str, set[str]] = {}
            for user in known.values():
                names.setdefault(user.session.tenant, set()).update(user.session.secrets)
            try:
                now = {tenant: await self._secrets.versions(tenant, sorted(found)) for tenant, found in names.items()}
            except WarrenError as exc:
                _log.warning("secrets_not_compared", action="retry", error=exc.message)
                continue
            users = [user for user in known.values() if user.session.tenant in now]
            await self._renew([user for user in users if user.differs_from(now[user.session.tenant])])

    async def _renew(self, users: Sequence[SecretUser]) -> None:
        for at in range(0, len(users), _AT_ONCE):
            await asyncio.gather(*map(self._renew_one, users[at : at + _AT_ONCE]))

    async def _renew_one(self, user: SecretUser) -> None:
        session, networks = user.session, self._networks
        try:
            async with networks.lock(session.id):
                current = await self._basis.store.get(session.tenant, session.id)
                if current is None or not current.state.holds_sandbox:
                    networks.forget(session.id)
                elif not networks.meter.is_closed(user.sandbox.id):  # it gets them when it is opened again
                    await networks.apply(current, user.sandbox)
        except WarrenError as exc:
            _log.warning("secrets_not_renewed", session=session.id, error=exc.message)
            networks.keep_trying(session, after_s=RETRY_S)
