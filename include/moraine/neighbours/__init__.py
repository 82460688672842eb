"""The other tables of a catalog: where they are and which files they reference.

A purge deletes no file that another table references or contains. Loading every table of the
catalog for each purge would take longer than the purge, so the ledger has an index of where they
are.
"""
