"""Mounts Moraine's apps in Airflow's api-server."""

from typing import Any, ClassVar

from airflow.plugins_manager import AirflowPlugin

from moraine.api.app import create_apps


class MorainePlugin(AirflowPlugin):
    name = "moraine"
    fastapi_apps: ClassVar[list[Any]] = [
        {"name": f"moraine {path}", "app": app, "url_prefix": path}
        for path, app in create_apps().items()
    ]
