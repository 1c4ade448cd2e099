"""Coverage-guided fuzzing of AMQP connections: `make fuzz`, or `python -m tests.fuzz.fuzz_amqp CORPUS`."""

from __future__ import annotations

import atheris

with atheris.instrument_imports(include=["mirrorlog", "pamqp"]):
    from tests.fuzz.targets import TARGETS

if __name__ == "__main__":
    from tests.fuzz.harness import fuzz

    fuzz(TARGETS["amqp"])
