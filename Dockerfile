# One image for everything that runs Moraine's code: Airflow's components and the Spark cluster.
# apache/spark's own image has another Python than 3.11, and PySpark wants the same one on the
# driver and on the workers.
ARG AIRFLOW_VERSION=3.3.2
ARG PYTHON_VERSION=3.11
ARG JAVA_VERSION=17

FROM eclipse-temurin:${JAVA_VERSION}-jre AS java

# The slim image: the providers come from requirements.txt, at the versions of the lock file.
FROM apache/airflow:slim-${AIRFLOW_VERSION}-python${PYTHON_VERSION}

USER root
COPY --from=java /opt/java/openjdk /opt/java/openjdk
# Volumes take their owner from these folders.
RUN install -d -o airflow -g root -m 0775 \
    /opt/moraine /opt/moraine/jars /opt/airflow/auth /opt/airflow/config /var/lib/moraine
USER airflow

ENV JAVA_HOME=/opt/java/openjdk \
    PATH="${PATH}:/opt/java/openjdk/bin" \
    PYSPARK_PYTHON=python3 \
    SPARK_CONF_DIR=/opt/moraine/docker/spark \
    MORAINE_STACK__CACHE=/opt/moraine/jars
# The Dag names its Spark app by a path from here.
WORKDIR /opt/moraine

COPY --chown=airflow:root requirements.txt requirements.lock ./
RUN pip install --no-cache-dir -r requirements.txt -c requirements.lock

COPY --chown=airflow:root pyproject.toml ./
COPY --chown=airflow:root include include
# Editable, so that the package lies beside dags/ and plugins/ as it does in a clone.
RUN pip install --no-cache-dir --no-deps -e . && moraine setup

COPY --chown=airflow:root dags dags
COPY --chown=airflow:root plugins plugins
COPY --chown=airflow:root spark_apps spark_apps
COPY --chown=airflow:root docker docker
COPY --chown=airflow:root docker/airflow_local_settings.py /opt/airflow/config/
