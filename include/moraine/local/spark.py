"""The Spark Connect server: one warm JVM that all tasks share.

Its configuration is a folder (`SPARK_CONF_DIR`), so that a `spark-submit` with the stack's
environment sees the same catalogs.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import sys
from datetime import datetime
from pathlib import Path

from moraine.local.home import Vault, file_uri
from moraine.local.jars import Classes, Jars
from moraine.local.java import find_java
from moraine.local.part import LOOPBACK, Command, Part, Report, StackError
from moraine.settings import StackSettings
from moraine.spark.session import with_plain_token

USER = "moraine"
TOKEN_VARIABLE = "SPARK_CONNECT_AUTHENTICATE_TOKEN"  # noqa: S105 - its name

# Spark's own pattern, and the secrets that a catalog's settings may hold.
_REDACTED = (
    "(?i)secret|password|passwd|token|credential|access[.-]?key|account[.]key|sas|connection-string"
)

_LOGGING = """\
rootLogger.level = warn
rootLogger.appenderRef.stdout.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{yyyy-MM-dd'T'HH:mm:ss.SSSXXX} %p %c{1}: %m%n%ex
logger.connect.name = org.apache.spark.sql.connect.service.SparkConnectServer
logger.connect.level = info
"""


class SparkConnect(Part):
    name = "spark"
    stop_seconds = 5  # Iceberg's pool for vended keys would delay the end by ten

    def __init__(
        self,
        settings: StackSettings,
        jars: Jars,
        classes: Classes,
        catalog_url: str,
        vault: Vault,
    ) -> None:
        self._settings = settings
        self._jars = jars
        self._classes = classes
        self._catalog_url = catalog_url
        self._vault = vault
        self._folder = settings.home / "spark"
        self._scratch = self._folder / "scratch"
        self.extra: dict[str, str] = {}
        """More variables for the server, and so for its Python workers."""

    @property
    def ports(self) -> dict[str, int]:
        ports = self._settings.ports
        return {"stack.ports.spark": ports.spark, "stack.ports.spark-ui": ports.spark_ui}

    @property
    def url(self) -> str:
        return f"sc://{LOOPBACK}:{self._settings.ports.spark}"

    @property
    def client_url(self) -> str:
        """With the token that the server asks for: do not log it."""
        return with_plain_token(f"{self.url}/;token={self._vault.spark_token};use_ssl=false")

    @property
    def session_url(self) -> str:
        """The session that all clients share: a new one would start a new Python daemon."""
        return f"{self.client_url};user_id={USER};session_id={self._vault.spark_session}"

    @property
    def environment(self) -> dict[str, str]:
        """What `spark-submit` and PySpark need to find this Spark and its configuration."""
        java: dict[str, str] = {}
        with contextlib.suppress(StackError):  # a stack of only PostgreSQL needs no Java
            java = {"JAVA_HOME": str(find_java().home)}
        return {
            **java,
            "SPARK_HOME": str(_spark_home()),
            "SPARK_CONF_DIR": str(self._folder / "conf"),
            "SPARK_LOCAL_IP": LOOPBACK,
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
        }

    def prepare(self, report: Report) -> None:
        java = find_java()
        self._jars.fetch(java, report, self._settings.ivy_settings)
        self._classes.compile(java, report)
        conf = self._folder / "conf"
        conf.mkdir(parents=True, exist_ok=True)
        (conf / "spark-defaults.conf").write_text(self.render_defaults())
        (conf / "log4j2.properties").write_text(_LOGGING)

    def clean(self) -> None:
        shutil.rmtree(self._scratch, ignore_errors=True)
        self._scratch.mkdir()

    def command(self) -> Command:
        ui = {
            "spark.ui.enabled": "true",
            "spark.ui.port": str(self._settings.ports.spark_ui),
            "spark.port.maxRetries": "0",
        }
        return Command(
            argv=(
                str(_spark_home() / "bin" / "spark-submit"),
                "--class",
                "org.apache.spark.sql.connect.service.SparkConnectServer",
                "--name",
                "moraine",
                *(word for name, value in ui.items() for word in ("--conf", f"{name}={value}")),
                "spark-internal",
            ),
            directory=self._folder,
            # In the environment: options and files of options are easier to read for others.
            env={**self.environment, **self.extra, TOKEN_VARIABLE: self._vault.spark_token},
        )

    def probe(self, since: datetime) -> None:
        del since
        import grpc  # late: only this part needs it

        with grpc.insecure_channel(f"{LOOPBACK}:{self._settings.ports.spark}") as channel:
            grpc.channel_ready_future(channel).result(timeout=2)

    def render_defaults(self) -> str:
        return "".join(f"{name} {value}\n" for name, value in self._defaults().items())

    def _defaults(self) -> dict[str, str]:
        classes = [self._classes.folder, *self._jars.class_path("spark")]
        class_path = os.pathsep.join(str(path) for path in classes)
        return {
            "spark.master": self._settings.spark_master,
            "spark.driver.memory": self._settings.spark_memory,
            "spark.driver.host": LOOPBACK,
            "spark.driver.bindAddress": LOOPBACK,
            # On the class path rather than spark.jars, which copies 120 MB at every start.
            "spark.driver.extraClassPath": class_path,
            "spark.executor.extraClassPath": class_path,
            "spark.driver.extraJavaOptions": (
                # Out of memory, the server would go on with a dead context: let it be restarted.
                "-XX:+UseParallelGC -XX:-UsePerfData -XX:+ExitOnOutOfMemoryError "
                f'-Djava.io.tmpdir="{self._scratch}"'
            ),
            "spark.local.dir": str(self._scratch),
            "spark.sql.warehouse.dir": file_uri(self._folder / "warehouse"),
            "spark.sql.catalogImplementation": "in-memory",
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.shuffle.partitions": "4",
            "spark.sql.execution.arrow.pyspark.enabled": "true",
            "spark.sql.extensions": (
                "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
            ),
            "spark.sql.catalog.demo": "org.apache.iceberg.spark.SparkCatalog",
            "spark.sql.catalog.demo.type": "rest",
            "spark.sql.catalog.demo.uri": self._catalog_url,
            "spark.sql.catalog.demo.cache-enabled": "false",
            "spark.sql.catalog.demo.io-impl": "org.apache.iceberg.hadoop.HadoopFileIO",
            "spark.redaction.regex": _REDACTED,
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.connect.grpc.binding.address": LOOPBACK,
            "spark.connect.grpc.binding.port": str(self._settings.ports.spark),
            "spark.connect.grpc.port.maxRetries": "0",
            # The shared session must survive hours without a request.
            "spark.connect.session.manager.defaultSessionTimeout": "-1",
        }


def _spark_home() -> Path:
    found = importlib.util.find_spec("pyspark")
    if found is None or found.origin is None:
        raise StackError("The package pyspark is missing: run `make setup`.")
    return Path(found.origin).parent
