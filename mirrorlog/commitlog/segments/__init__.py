"""The files of a log, written, read and allocated ahead."""
