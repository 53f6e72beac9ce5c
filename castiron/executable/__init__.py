"""The compiled file: its format, its writer, its mapped reader."""
