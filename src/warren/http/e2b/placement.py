"""What a coordinator must know of a new sandbox to choose a worker for it, from what a client of E2B asks for."""

from collections.abc import Callable, Mapping
from typing import Any

from warren.http.e2b.control.bodies import read_flag, read_object
from warren.http.e2b.control.network import read_network_apart
from warren.http.e2b.errors import E2bError
from warren.http.e2b.template_records import DEFAULT_TAG
from warren.model.e2b import NETWORK_IF_POSSIBLE
from warren.model.environment import Environment
from warren.model.errors import InvalidRequest
from warren.model.session import OnIdle


async def placement_wishes(
    values: Mapping[str, Any], templates: Mapping[str, str], environment_of: Callable[[str], Environment | None]
) -> dict[str, Any]:
    """Returns them in the words of the native API. What is wrong with a request is left to the worker to say."""
    given = values.get("templateID")
    template = given.removesuffix(f":{DEFAULT_TAG}") if isinstance(given, str) else ""
    name = templates.get(template, template)
    wishes: dict[str, Any] = {"environment": name} if environment_of(name) is not None else {"snapshot": name}
    wishes["volumes"] = values.get("volumeMounts")
    try:
        if read_flag(values, "autoPause"):
            keeps_memory = read_flag(values, "autoPauseMemory") is not False
            wishes["on_idle"] = OnIdle.PAUSE if keeps_memory else OnIdle.HIBERNATE
        internet = read_flag(values, "allow_internet_access")
        rules = await read_network_apart(read_object(values, "network") or {}, internet)
    except (E2bError, InvalidRequest):
        return wishes
    return {**wishes, NETWORK_IF_POSSIBLE: True} if rules is None else {**wishes, "network": rules.as_mapping()}
