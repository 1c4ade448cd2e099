"""`python -m bench`. Nothing else here: the processes of clients load this module too."""

if __name__ == "__main__":
    import sys

    from bench.cli import main

    sys.exit(main())
