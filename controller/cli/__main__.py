"""`python -m controller.cli` is `outrider`."""

from controller.cli import main

if __name__ == "__main__":
    main()
