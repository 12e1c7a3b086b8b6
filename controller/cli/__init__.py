"""The command `outrider`."""


def main() -> None:
    """Runs the command line; the entry point of the distribution."""
    from controller.cli.app import app

    app()
