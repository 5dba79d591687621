"""The HTTP API.

`server.serving` and `server.connections` parse a request, and limit what a client may send and how long it may take.
`pipeline` is the list of all stages that it passes then. `app` is the FastAPI app, the last of them: it answers what is
no operation, and documents all operations for `openapi`.
"""
