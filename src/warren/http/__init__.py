"""The HTTP API.

A request passes these parts, from outside to inside; each calls the next as an ASGI app:

1. `server.serving` and `server.connections` parse it, and limit what a client may send and how long it may take.
2. `server.http_guard` checks host, origin and size, gives the request an id, logs it, and turns errors into answers.
3. `admission` identifies the caller, counts the request against quotas, and records it in usage and audit.
4. In a coordinator, `cluster.proxy.router` forwards it to the worker that has its session.
5. `dispatch` performs the operations of the table in model/api.py: it checks the scope, reads the arguments, and calls
   the operation's handler (`warren.sessions.operations`, `routes.flat`, `routes.e2b`).
6. `app` is the FastAPI app. Its `routes` answer everything else, and document all operations for `openapi`.
"""
