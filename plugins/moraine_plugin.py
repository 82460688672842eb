"""Mounts Moraine's API in Airflow's api-server."""

from typing import Any, ClassVar

from airflow.plugins_manager import AirflowPlugin

from moraine.api.app import MOUNT_PATH, create_app


class MorainePlugin(AirflowPlugin):
    name = "moraine"
    fastapi_apps: ClassVar[list[Any]] = [
        {"name": "moraine-delegation", "app": create_app(), "url_prefix": MOUNT_PATH}
    ]
