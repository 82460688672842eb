"""The door for files: a file dropped below a watched prefix is written once to the table that its
path names, and then kept, moved or deleted."""
