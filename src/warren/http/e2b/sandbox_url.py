"""Clients that know the address of the control plane alone (E2B_API_URL without E2B_SANDBOX_URL).

Such a client makes up a host name for each sandbox and speaks TLS to it. Where the server speaks plain HTTP, its first
command fails with the words of its TLS library, and nothing that is answered there could be read. The SDK then says to
look at the state of the sandbox: that call, and connecting, answer what to do. They do so for the client's own address
alone, and only as long as nobody has reached the sandbox: a name in a handshake proves nothing.
"""

from typing import Final

from warren.http.e2b.call import E2bCall
from warren.http.e2b.errors import E2bError
from warren.model.e2b import CODE_PORT, ENVD_PORT, sandbox_id_of

_PORTS: Final = (ENVD_PORT, CODE_PORT)


def check_address(call: E2bCall, session_id: str) -> None:
    """Raises E2bError if the client speaks TLS to the sandbox in vain."""
    hellos, client = call.tls_hellos, call.scope.get("client")
    if hellos is None or not client or call.envd.was_reached(session_id):
        return
    if any(hellos.has(f"{port}-{sandbox_id_of(session_id)}", str(client[0])) for port in _PORTS):
        address = f"{call.scope['scheme']}://{call.address.base}"
        raise E2bError(
            400,
            "the client speaks TLS to this sandbox, and the server speaks plain HTTP: set "
            f"E2B_SANDBOX_URL={address} beside E2B_API_URL, or the argument sandbox_url",
        )
