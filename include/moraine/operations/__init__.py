"""The operations that Moraine carries out: each has a folder, and is registered here."""

from moraine.operations import purge
from moraine.tasks.operation import Registry

OPERATIONS = Registry([purge.OPERATION])
