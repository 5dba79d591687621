"""Many machines: workers that hold sandboxes, coordinators that forward requests to them, and Redis between them.

Theory of operation. Three kinds of processes take part.

- A worker is the whole service of one machine (`app/worker_process`). It registers in Redis and renews a lease with a
  `heartbeat` every 2 s. `entrance` lets only coordinators in, and only while the `lease` lasts.
- A coordinator owns nothing (`app/coordinator_process`). Its `fleet` reads the `roster` of workers from Redis every
  second. For each request `proxy` finds the worker of the session, or `placement` chooses one for a new session, and
  the `http_client` forwards the request. `failover` gives up the sessions of dead workers; `operator` serves
  `warren cluster`.
- Redis holds the roster, the sessions and everything that coordinators and workers share.

Coordinators and workers prove to each other that they belong together with the cluster's secret (`auth`). Besides
forwarded requests they make a few calls of their own (`peer_calls`): a worker that has lost Redis asks coordinators to
renew its lease, and coordinators ask workers for their name and figures. docs/cluster.md describes what happens when
any of them fails.
"""
