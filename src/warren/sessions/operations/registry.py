"""Shows the registry: environments, agents, tools and prompts, as they are now."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field

from warren.model.agent import Agent
from warren.model.errors import EntryNotFound, UnknownEntry
from warren.model.suggestions import suggest
from warren.sessions.operations.call import Call, Handler, Values
from warren.sessions.operations.environments import show_environment, usable_environments
from warren.sessions.schemas import MAX_VARIABLES, Body

KINDS: Final = ("environments", "agents", "tools", "prompts")


class EntryLine(BaseModel):
    name: str
    description: str


class EntryView(EntryLine):
    """An entry, with the keys of its kind; see docs/registry.md."""

    model_config = ConfigDict(extra="allow")


class EntryLines(BaseModel):
    kind: str
    entries: list[EntryLine]


class RenderBody(Body):
    variables: dict[str, str] = Field(
        {}, description="Values by the name of their variable", max_length=MAX_VARIABLES, examples=[{"task": "…"}]
    )


class RenderedView(BaseModel):
    name: str
    text: str


async def list_registry(call: Call) -> Values:
    """`kind` is environments, agents, tools or prompts. A key that is bound to environments sees these, and the agents
    that use them."""
    found = await _usable(call)
    return {"kind": call.kind, "entries": [{"name": one.name, "description": one.description} for one in found]}


async def get_registry_entry(call: Call) -> Values:
    """All of it, as its file has it; of variables of an environment or an agent only the names."""
    found = await _usable(call)
    one = next((each for each in found if each.name == call.entry), None)
    if one is None:
        names = [each.name for each in found]
        remedy = f"{suggest(call.entry, names)}there are: {', '.join(names) or 'none'}"
        raise EntryNotFound(f"there is no {call.kind[:-1]} {call.entry[:100]!r} that you may use", remedy=remedy)
    if call.kind == "environments":
        return show_environment(one, is_default=one.name == call.context.default_environment)
    shown: Values = one.as_mapping()
    return shown


async def render_prompt(call: Call, body: RenderBody | None) -> Values:
    """Variables that are left out have their defaults; one that has none must be given."""
    try:
        prompt = call.context.environments.entries.prompts.get(call.entry)
    except UnknownEntry as exc:
        raise EntryNotFound(exc.message, remedy=exc.remedy) from exc
    return {"name": prompt.name, "text": prompt.render(body.variables if body else {})}


async def _usable(call: Call) -> Sequence[Any]:
    """Returns the entries of the call's kind that the caller may use, without those whose file has a mistake."""
    entries = call.context.environments.entries
    read: dict[str, Callable[[], Sequence[Any]]] = {
        "agents": entries.agents.list,
        "tools": entries.tools.list,
        "prompts": entries.prompts.list,
    }
    if call.kind == "environments":
        return await usable_environments(call)
    if call.kind not in read:
        raise EntryNotFound(f"the registry has no {call.kind[:100]!r}", remedy=f"it has {', '.join(KINDS)}")
    found = await asyncio.to_thread(read[call.kind])
    if call.kind != "agents":
        return found
    names = {one.name for one in await usable_environments(call)}
    return [one for one in found if _environment_of(call, one) in names]


def _environment_of(call: Call, agent: Agent) -> str:
    return agent.environment or call.context.default_environment


HANDLERS = (
    Handler("list_registry", list_registry, result=EntryLines),
    Handler("get_registry_entry", get_registry_entry, result=EntryView),
    Handler("render_prompt", render_prompt, body=RenderBody, result=RenderedView),
)
