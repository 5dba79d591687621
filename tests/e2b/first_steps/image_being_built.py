"""The image of a template is made when its first sandbox is asked for: what a client hears that does not wait so long,
and that it gets its sandbox later."""

import os
import time

from checks import done, refused
from e2b import Sandbox

name = os.environ["TEMPLATE"]
began = time.monotonic()
with refused(Exception, says="503") as refusal:
    Sandbox.create(name, request_timeout=float(os.environ["PATIENCE_S"]))
told = str(refusal.error)
assert "is being built" in told, told
assert "step 1 of " in told, told
assert time.monotonic() - began < float(os.environ["PATIENCE_S"])
while True:
    try:
        with Sandbox.create(name, timeout=60) as sandbox:
            assert sandbox.commands.run("cat /made").stdout == "made\n"
        break
    except Exception as exc:
        if "is being built" not in str(exc) or time.monotonic() - began > 90:
            raise
done()
