"""Mounts Moraine's apps in Airflow's api-server."""

from functools import cached_property
from typing import Any

from airflow.plugins_manager import AirflowPlugin


class MorainePlugin(AirflowPlugin):
    """Airflow imports plugins in every component. Only the api-server asks for the apps, so they
    are built, and all that they import is imported, when it does."""

    name = "moraine"

    @cached_property
    def fastapi_apps(self) -> list[Any]:  # type: ignore[override]
        from moraine.app.assembly import create_apps

        return [
            {"name": f"moraine {path}", "app": app, "url_prefix": path}
            for path, app in create_apps().items()
        ]
