"""Copied beside a recorded program; nothing here is imported by lapwing."""
