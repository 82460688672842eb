"""The delegation API: its apps, its guards, and its callers' side."""

MOUNT_PATH = "/delegation-service/api"
