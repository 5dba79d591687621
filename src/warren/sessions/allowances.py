"""Checks the quotas of a caller's key and tenant before a session is created or changed. Pure."""

import math
from collections.abc import Awaitable, Callable, Container

from warren.interfaces.store import NO_CAPS, Caps
from warren.model.access import ANY_TENANT, NO_QUOTA, Caller, Scope, check_tenant
from warren.model.errors import Forbidden, InvalidRequest
from warren.model.session import Session
from warren.model.spec import Ceilings, Limits

_CEILING_OPTIONS = {
    "memory_mb": "max_memory_limit",
    "cpus": "max_cpus",
    "pids": "max_pids",
    "disk_mb": "max_disk_mb",
    "open_files": "max_open_files",
}


PayerOf = Callable[[Session], Awaitable[Caller]]
"""Returns the caller whose quotas a session uses up: its tenant, and the key it was made with."""


async def unbounded(session: Session) -> Caller:
    return Caller(session.tenant)


def choose_tenant(caller: Caller, of: str, *scopes: Scope) -> str:
    """Returns the tenant whose things the caller looks at: its own, or `of`, which may be ANY_TENANT. Raises Forbidden
    if the caller names one and has none of the scopes."""
    if not of:
        return caller.tenant
    if not any(map(caller.may, scopes)):
        raise Forbidden(
            "this key sees the things of its own tenant only",
            remedy=f"leave `of` out, or use a key with the scope {' or '.join(scopes)}",
        )
    return of if of == ANY_TENANT else check_tenant(of)


def caps_of(caller: Caller) -> Caps:
    """Returns the caps that the store enforces for this caller."""
    tenant, key = caller.quota, caller.key_quota
    if tenant is NO_QUOTA and key is NO_QUOTA:
        return NO_CAPS
    return Caps(
        tenant.sessions,
        tenant.disk_mb,
        key.sessions,
        key.disk_mb,
        tenant.gpus,
        key.gpus,
        tenant.paused_sessions,
        key.paused_sessions,
    )


def check_allowed(
    caller: Caller, environment: str, limits: Limits, lifetime_s: float, image: str = "", asked: Container[str] = ()
) -> None:
    """Raises Forbidden if the caller may not have such a session. `image` is given if it is not the environment's;
    `asked` has the names of the limits that the request names, the others are the environment's."""
    for owner, quota in caller.quota_levels:
        if quota.environments and environment not in quota.environments:
            raise Forbidden(
                f"the environment {environment!r} is not for this key",
                remedy=f"use one of: {', '.join(quota.environments)}",
            )
        if quota.environments and image:
            raise Forbidden(
                f"the image {image!r} is not for this key: it may use what its environments have",
                remedy=f"leave the image out, and use one of: {', '.join(quota.environments)}",
            )
        for name, most in quota.limits.items():
            value = getattr(limits, name)
            if value > most:
                whose = "this key" if owner.startswith("key:") else f"the tenant {caller.tenant!r}"
                source = "was asked for" if name in asked else f"is what the environment {environment!r} has"
                raise Forbidden(
                    f"{name} may be at most {most:.15g} for {whose}, {value:.15g} {source}",
                    remedy=f'ask for at most that: {{"limits": {{"{name}": {most:.15g}}}}}{_option(name, most)}',
                )
    check_lifetime(caller, lifetime_s)


def _option(name: str, most: float) -> str:
    option = {"memory_mb": "-m", "cpus": "--cpus", "disk_mb": "--disk"}.get(name, "")
    return f", `{option} {most:.15g}` on the command line" if option else ""


def check_ceilings(ceilings: Ceilings, limits: Limits, environment: Limits) -> None:
    """Raises InvalidRequest if more is asked for than this server gives to any sandbox."""
    # The operator wrote the environment, so a session may have what its environment says even above the ceilings.
    for name, option in _CEILING_OPTIONS.items():
        most, asked = getattr(ceilings, name), getattr(limits, name)
        if most is not None and asked > max(most, getattr(environment, name)):
            raise InvalidRequest(
                f"{name} may be at most {most:.15g} on this server, {asked:.15g} was asked for",
                remedy=f"ask for less; the operator can raise the option {option}",
            )
    files, usual = limits.open_files * limits.pids, environment.open_files * environment.pids
    if ceilings.files is not None and files > max(ceilings.files, usual):
        raise InvalidRequest(
            f"open_files times pids may be at most {ceilings.files} on this server, {files} was asked for",
            remedy="ask for less of either; the operator can raise the option max_open_files",
        )


def longest_life(caller: Caller) -> float:
    return min(quota.max_lifetime_s or math.inf for _, quota in caller.quota_levels)


def check_lifetime(caller: Caller, lifetime_s: float) -> None:
    for _, quota in caller.quota_levels:
        most = quota.max_lifetime_s
        if most is not None and lifetime_s > most:
            raise Forbidden(
                f"a session may live for {most:.15g} s with this key, {lifetime_s:.15g} s was asked for",
                remedy=f"ask for a max_lifetime_s of at most {most:.15g}",
            )
