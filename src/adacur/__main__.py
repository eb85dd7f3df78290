"""`python -m adacur` is `adacur`."""

from adacur.cli import run

if __name__ == "__main__":
    run()
