"""The draft service: `python -m draft_service --model MODEL --listen HOST:PORT`."""

import sys

from draft_service.config import DraftConfig
from draft_service.servicer import DraftProcess
from speculative import settings
from speculative.rpc import lifecycle


def main() -> None:
    """Serves until SIGTERM or SIGINT."""
    config = settings.load(DraftConfig, sys.argv[1:], "python -m draft_service")
    lifecycle.run(config, lambda: DraftProcess(config))


if __name__ == "__main__":
    main()
