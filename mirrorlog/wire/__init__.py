"""Frames of the native protocol, shared by ha, broker and client."""
