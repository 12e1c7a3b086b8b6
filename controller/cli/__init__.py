"""The command `outrider`."""


def main() -> None:
    """Runs the command line; the entry point of the distribution."""
    from controller.cli.app import app
    from controller.cli.failures import silent_closed_pipe

    with silent_closed_pipe():
        app()
