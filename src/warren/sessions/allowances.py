"""Checks the quotas of a caller's key and tenant before a session is created or changed. Pure."""

import math

from warren.interfaces.store import NO_CAPS, Caps
from warren.model.access import NO_QUOTA, Caller
from warren.model.errors import Forbidden
from warren.model.spec import Limits


def caps_of(caller: Caller) -> Caps:
    """The caps that the store enforces."""
    tenant, key = caller.quota, caller.key_quota
    if tenant is NO_QUOTA and key is NO_QUOTA:
        return NO_CAPS
    return Caps(tenant.sessions, tenant.disk_mb, key.sessions, key.disk_mb)


def check_allowed(caller: Caller, environment: str, limits: Limits, lifetime_s: float, image: str = "") -> None:
    """Raises Forbidden if the caller may not have such a session; `image` is given if it is not the environment's."""
    for _, quota in caller.quota_levels:
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
            if getattr(limits, name) > most:
                raise Forbidden(f"{name} may be at most {most:g} for this key, {getattr(limits, name):g} was asked for")
    check_lifetime(caller, lifetime_s)


def longest_life(caller: Caller) -> float:
    return min(quota.max_lifetime_s or math.inf for _, quota in caller.quota_levels)


def check_lifetime(caller: Caller, lifetime_s: float) -> None:
    for _, quota in caller.quota_levels:
        if quota.max_lifetime_s is not None and lifetime_s > quota.max_lifetime_s:
            raise Forbidden(
                f"a session may live for {quota.max_lifetime_s:g} s with this key, {lifetime_s:g} s was asked for",
                remedy=f"ask for a max_lifetime_s of at most {quota.max_lifetime_s:g}",
            )
