"""Measures the service over HTTP, beside docker exec, llm-sandbox, swe-rex and the bare runtime, in one run.

    sudo .venv/bin/python bench/service.py               everything, some minutes
    sudo .venv/bin/python bench/service.py exec rate     only these parts, of: create exec first rate files many idle
                                                         admission tenants
    sudo .venv/bin/python bench/service.py --quick       small counts, to see whether it works

Each part starts servers of its own, on fresh state, and removes them. The client is this process: an asyncio protocol
on raw sockets (service_client.py), which costs less than any client library, and curl for large files. It shares the
cores with the server. Absolute times depend on the machine; compare the ratios. Each row ends with its target and
whether this run met it; a missed target is not an error.
"""

import asyncio
import sys

import service_bulk
import service_speed
import service_tenants
import uvloop
from sandboxes import Part, run_parts

PARTS: dict[str, Part] = {
    "create": service_speed.create_part,
    "exec": service_speed.exec_part,
    "first": service_speed.first_part,
    "rate": service_speed.rate_part,
    "files": service_bulk.files_part,
    "many": service_bulk.many_part,
    "idle": service_bulk.idle_part,
    "admission": service_tenants.admission_part,
    "tenants": service_tenants.tenants_part,
}


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        sys.exit(runner.run(run_parts(PARTS, sys.argv[1:])))
