"""The kinds of work Moraine takes on: a folder each, registered here."""

from moraine.operations import purge
from moraine.tasks.operation import Registry

OPERATIONS = Registry([purge.OPERATION])
