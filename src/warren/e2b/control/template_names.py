"""Which environment a template stands for, and the other way round."""

from warren.e2b.control.bodies import bad
from warren.e2b.errors import E2bError
from warren.e2b.routes import E2bCall
from warren.model.environment import Environment
from warren.model.errors import UnknownEnvironment
from warren.model.session import Session


def find_environment(call: E2bCall, template_id: str | None) -> Environment:
    """Raises E2bError for a template that is not named, or not known."""
    if not template_id:
        raise bad("templateID is missing")
    try:
        return call.context.environments(call.rules.templates.get(template_id, template_id))
    except UnknownEnvironment:
        raise E2bError(404, f"template {template_id[:80]!a} not found") from None


def template_of(call: E2bCall, session: Session) -> str:
    for template, environment in call.rules.templates.items():
        if environment == session.environment:
            return template
    return session.environment
