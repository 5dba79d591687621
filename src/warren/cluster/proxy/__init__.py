"""Forwarding from a coordinator to its workers.

`router` decides where each request goes. `target` reads which session a request names, `http_requests` and
`websockets` forward it, and `liveness` ends requests that wait for a worker which has stopped responding.
"""
