"""The way from a coordinator to a worker: requests, streams and WebSockets, passed on as they come.

`links` holds the connections to all workers and asks; `connection` is one of them; `http` passes a client's request
on and the answer back; `websocket` ties a client's WebSocket to a worker's. What all of them may fail with is in
`failures`.

    body = RequestBody(receive)
    async with forwarded(links, address, scope, body, headers=ours) as answer:
        if answer.status == 421 and body.rewind():
            ...  # nothing has been sent to the client yet: ask another worker
        await pass_on(answer, send)
"""
