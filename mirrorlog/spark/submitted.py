"""Whether spark-submit runs this program: then the JVM is there already, with the settings given to it.

In a file of its own, so that who needs no JVM can ask without pyspark.
"""

from __future__ import annotations

import os
from typing import Final

_SET_BY_SPARK_SUBMIT: Final = "PYSPARK_GATEWAY_PORT"


def is_submitted() -> bool:
    """Whether the process was started by spark-submit."""
    return _SET_BY_SPARK_SUBMIT in os.environ
