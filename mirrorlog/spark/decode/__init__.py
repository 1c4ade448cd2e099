"""Landed records by schema: the bytes of `value` become columns, or a dead letter that says what is wrong and where.

Three formats, one contract (`decoded.Decoder`): JSON, Avro and Protobuf. Arrow in, Arrow out: no Spark and no network,
so a decoder travels to tasks and is tried without a JVM. What it promises: no value becomes null, or another value,
unseen; every record is either a row, a dead letter, or a tombstone; the same bytes under the same schema always end
the same way, whatever stands beside them in the batch.
"""

from mirrorlog.spark.decode.decoded import Decoded, Decoder
from mirrorlog.spark.decode.making import make_decoder
from mirrorlog.spark.decode.types import to_ddl, to_delta_json
from mirrorlog.spark.decode.widening import widen

__all__ = ["Decoded", "Decoder", "make_decoder", "to_ddl", "to_delta_json", "widen"]
