"""What is written as TOML is read back as it was."""

import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirrorlog.config import load_settings
from mirrorlog.errors import ConfigError
from mirrorlog.testing.cluster import dump_toml

SCALARS = st.one_of(
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(st.characters(exclude_categories=["Cs"])),
)
KEYS = st.from_regex(r"\A[a-z][A-Za-z0-9_-]{0,10}\Z")
VALUES = st.recursive(SCALARS, lambda inner: st.one_of(st.lists(inner), st.dictionaries(KEYS, inner)), max_leaves=8)


@pytest.mark.long
@given(st.dictionaries(KEYS, st.dictionaries(KEYS, VALUES, max_size=4), max_size=4))
def test_any_settings_survive_the_file(tables: dict[str, dict[str, Any]]) -> None:
    """Goal: no value changes on its way into a file. Method: arbitrary tables, read by the standard library."""
    assert tomllib.loads(dump_toml(tables)) == tables


def test_none_is_left_out_everywhere() -> None:
    """Goal: an absent setting keeps its default. Method: None as a value and inside a table of a list."""
    text = dump_toml({"cluster": {"id": None, "members": [{"id": "n1", "grpc": None}]}})
    assert tomllib.loads(text) == {"cluster": {"members": [{"id": "n1"}]}}


def test_paths_and_members_are_read_by_a_node(tmp_path: Path) -> None:
    """Goal: the file is one that a node accepts. Method: write it and load it as a node does."""
    members = [{"id": "n1", "client": "127.0.0.1:1", "replication": "127.0.0.1:2"}]
    file = tmp_path / "n1.toml"
    file.write_text(dump_toml({"cluster": {"members": members}, "node": {"id": "n1", "data_dir": tmp_path / "a b"}}))
    settings = load_settings(file, environment={})
    assert settings.node.data_dir == tmp_path / "a b"
    assert settings.member.client == "127.0.0.1:1"


def test_a_value_that_toml_has_no_word_for_is_refused() -> None:
    """Goal: no file is written that says something else. Method: bytes, with the key in the message."""
    with pytest.raises(ConfigError, match=r"node\.id: a bytes"):
        dump_toml({"node": {"id": b"n1"}})
