"""`python -m bench.spark`. Nothing else here: Spark's workers load this module too."""

if __name__ == "__main__":
    import sys

    from bench.spark.cli import main

    sys.exit(main())
