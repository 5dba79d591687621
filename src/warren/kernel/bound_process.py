"""`python -m warren.kernel.bound_process PID PROGRAM ARGUMENT…` becomes the program.

It gets SIGTERM when the process that has started it, which is PID, ends, however that ends.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1

if __name__ == "__main__":
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
    if os.getppid() != int(sys.argv[1]):
        sys.exit("the process that wanted this one has ended")
    os.execvp(sys.argv[2], sys.argv[2:])
