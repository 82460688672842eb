from __future__ import annotations

from support.stores import (
    fault_proxy,
    lake,
    nessie,
    running_fault_proxy,
    running_vending_catalog,
    s3_catalog,
    seaweedfs,
    spark,
    spark_stack,
    vending_catalog,
)

__all__ = [
    "fault_proxy",
    "lake",
    "nessie",
    "running_fault_proxy",
    "running_vending_catalog",
    "s3_catalog",
    "seaweedfs",
    "spark",
    "spark_stack",
    "vending_catalog",
]
