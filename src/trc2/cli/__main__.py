"""`python -m trc2.cli` is the `trc2` command."""

from trc2.cli import main

if __name__ == "__main__":
    main()
