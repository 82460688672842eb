"""The door for files: what is dropped below a watched prefix is taken to the table it is named
for, once, and then kept, moved or deleted."""
