"""What holds for commands in a sandbox of a template that its tenant has built."""

from warren.http.e2b.call import E2bCall
from warren.model.session import Session
from warren.model.tenant_images import template_in


async def usual_user(call: E2bCall, session: Session) -> str:
    """Who runs commands for which the client names nobody; "" is the usual user. The image itself says where they
    start."""
    if call.rules.builds is None or not template_in(session.image):
        return ""
    build = await call.rules.builds.build_of(session.tenant, session.image)
    return build.user if build else ""
