"""The controller: `python -m controller --verifier HOST:PORT [--draft HOST:PORT] --listen HOST:PORT`."""

import sys

from controller.config import ControllerConfig
from controller.servicer import ControllerProcess
from speculative import settings
from speculative.rpc import lifecycle


def main() -> None:
    """Serves until SIGTERM or SIGINT."""
    config = settings.load(ControllerConfig, sys.argv[1:], "python -m controller")
    lifecycle.run(config, lambda: ControllerProcess(config))


if __name__ == "__main__":
    main()
