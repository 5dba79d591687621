"""What E2B's clients can ask for and this server does not have: each is refused by name, with status 501."""

from collections.abc import Mapping

from starlette.responses import Response

from warren.http.e2b.call import E2bCall, Run
from warren.http.e2b.control.sandboxes import living_session
from warren.http.e2b.errors import E2bError
from warren.model.api import E2B_OPERATIONS, E2B_UNSUPPORTED


async def refuse(call: E2bCall) -> Response:
    """Answers with the summary of the operation's row, which says what is missing."""
    if "sandbox_id" in call.params:
        await living_session(call)
    assert call.request.operation is not None
    raise E2bError(501, call.request.operation.summary)


HANDLERS: Mapping[str, Run] = {name: refuse for name, row in E2B_OPERATIONS.items() if row.action == E2B_UNSUPPORTED}
