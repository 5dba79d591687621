"""Previews: HTTP and WebSockets to servers inside sandboxes.

`access` recognises requests for previews, by their host or their path, and checks the link, cookie or token of those
that have no key. Requests by path pass the checks of every request; requests by host have an origin of their own, and a
guard of their own (`guard`). `proxy` is where the sandboxes are: it connects to the port inside the sandbox's network
namespace and forwards. In a cluster the coordinator lets requests in, its router forwards, and the worker has the
proxy. `headers` decides what passes between client and sandbox.
"""
