"""Spark sessions and Python workers."""
