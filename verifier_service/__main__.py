"""The verifier service: `python -m verifier_service --model MODEL --listen HOST:PORT`."""

import sys

from speculative import settings
from speculative.rpc import lifecycle
from verifier_service.config import VerifierConfig
from verifier_service.servicer import VerifierProcess


def main() -> None:
    """Serves until SIGTERM or SIGINT."""
    config = settings.load(VerifierConfig, sys.argv[1:], "python -m verifier_service")
    lifecycle.run(config, lambda: VerifierProcess(config))


if __name__ == "__main__":
    main()
