"""Runs a module that does not outlive its parent: `python -m controller.cli.attached PARENT_PID MODULE ARGUMENT...`.

A parent that is killed cannot stop its children, and a forgotten model holds its memory for good. Linux can tell a
process of its parent's death; where it cannot, this only runs the module.
"""

import ctypes
import os
import runpy
import signal
import sys
from collections.abc import Sequence

_PR_SET_PDEATHSIG = 1


def main(arguments: Sequence[str]) -> None:
    """Becomes the module, which gets SIGTERM when the process `PARENT_PID` dies."""
    parent, module, *rest = arguments
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != int(parent):
            sys.exit(f"{module} was not started: its parent is gone")
    sys.argv = [module, *rest]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(sys.argv[1:])
