"""The .proto files keep their promises: numbers never change their meaning, and the generated code is theirs."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from google.protobuf import descriptor_pb2
from google.protobuf.descriptor_pb2 import DescriptorProto, EnumDescriptorProto, FieldDescriptorProto

from mirrorlog.pb.v1 import admin_pb2, common_pb2, consumer_pb2, producer_pb2, status_pb2

ROOT = Path(__file__).parents[2]
GOLDEN = Path(__file__).parent / "golden" / "protos.txt"
MODULES = {
    "mirrorlog/v1/admin.proto": admin_pb2,
    "mirrorlog/v1/common.proto": common_pb2,
    "mirrorlog/v1/consumer.proto": consumer_pb2,
    "mirrorlog/v1/producer.proto": producer_pb2,
    "mirrorlog/v1/status.proto": status_pb2,
}


def compiled(directory: Path) -> dict[str, descriptor_pb2.FileDescriptorProto]:
    """The descriptors of all .proto files, by path."""
    output = directory / "set.bin"
    files = sorted(str(path) for path in (ROOT / "proto").rglob("*.proto"))
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{ROOT / 'proto'}", f"--descriptor_set_out={output}"]
    subprocess.run([*command, *files], check=True, timeout=60)
    return {file.name: file for file in descriptor_pb2.FileDescriptorSet.FromString(output.read_bytes()).file}


def listing() -> str:
    """Every field, enum value and method with its number and type, a line each."""
    lines: list[str] = []
    for module in MODULES.values():
        file = descriptor_pb2.FileDescriptorProto()
        module.DESCRIPTOR.CopyToProto(file)
        for message in file.message_type:
            lines += message_lines(f"{file.package}.{message.name}", message)
        for enum in file.enum_type:
            lines += enum_lines(f"{file.package}.{enum.name}", enum)
        for service in file.service:
            for method in service.method:
                asks = ("stream " if method.client_streaming else "") + method.input_type.lstrip(".")
                answers = ("stream " if method.server_streaming else "") + method.output_type.lstrip(".")
                lines.append(f"rpc {file.package}.{service.name}/{method.name} ({asks}) returns ({answers})")
    return "\n".join(sorted(lines)) + "\n"


def message_lines(name: str, message: DescriptorProto) -> Iterator[str]:
    for field in message.field:
        yield f"{name} {field.number:>2} {field.name}: {field_type(field)}{field_place(message, field)}"
    for nested in message.nested_type:
        yield from message_lines(f"{name}.{nested.name}", nested)
    for enum in message.enum_type:
        yield from enum_lines(f"{name}.{enum.name}", enum)


def enum_lines(name: str, enum: EnumDescriptorProto) -> Iterator[str]:
    return (f"{name} {value.number:>2} = {value.name}" for value in enum.value)


def field_type(field: FieldDescriptorProto) -> str:
    name = field.type_name.lstrip(".") or FieldDescriptorProto.Type.Name(field.type).removeprefix("TYPE_").lower()
    return f"repeated {name}" if field.label == FieldDescriptorProto.LABEL_REPEATED else name


def field_place(message: DescriptorProto, field: FieldDescriptorProto) -> str:
    if field.proto3_optional:
        return ", optional"
    return f", in {message.oneof_decl[field.oneof_index].name}" if field.HasField("oneof_index") else ""


def test_no_number_and_no_type_has_changed() -> None:
    """Goal: old clients go on working. Method: compare with the committed listing; lines may only be added.

    `MIRRORLOG_WRITE_GOLDEN=1 pytest tests/doors` writes it anew; a line that changed or went is a break.
    """
    found = listing()
    if os.environ.get("MIRRORLOG_WRITE_GOLDEN"):
        GOLDEN.write_text(found)
    assert found == GOLDEN.read_text()


def test_the_generated_code_is_that_of_the_sources(tmp_path: Path) -> None:
    """Goal: nobody forgets `make proto`. Method: compile the sources and compare descriptors."""
    sources = compiled(tmp_path)
    assert sources.keys() == MODULES.keys()
    for path, module in MODULES.items():
        committed = descriptor_pb2.FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb)
        assert committed == without_json_names(sources[path]), path


def test_the_generated_code_takes_no_name_of_the_package() -> None:
    """Goal: `mirrorlog` stays one package. Method: the name that other languages see is no Python module."""
    assert producer_pb2.DESCRIPTOR.package == "mirrorlog.v1"
    assert producer_pb2.PublishRequest.__module__ == "mirrorlog.pb.v1.producer_pb2"
    assert importlib.util.find_spec("mirrorlog.v1") is None


def without_json_names(file: descriptor_pb2.FileDescriptorProto) -> descriptor_pb2.FileDescriptorProto:
    """protoc adds JSON names to a descriptor set and not to generated code."""
    copy = descriptor_pb2.FileDescriptorProto()
    copy.CopyFrom(file)
    pending = list(copy.message_type)
    while pending:
        message = pending.pop()
        pending += message.nested_type
        for field in message.field:
            field.ClearField("json_name")
    return copy
