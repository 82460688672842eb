"""Make the bucket `warehouse` and the catalog `demo` in Polaris, unless they are there, and let
root manage the catalog's content."""

import os

import requests
from pyarrow.fs import S3FileSystem

NAME = "demo"
BUCKET = "warehouse"
LOCATION = f"s3://{BUCKET}/{NAME}"
REGION = "us-east-1"
CATALOG = {
    "name": NAME,
    "type": "INTERNAL",
    # A folder, not the bucket: Moraine deletes below what a catalog reports, and not in all of it.
    "properties": {"default-base-location": LOCATION},
    "storageConfigInfo": {
        "storageType": "S3",
        "allowedLocations": [LOCATION],
        "endpoint": "http://s3:8333",
        "pathStyleAccess": True,
        "region": REGION,
        # The S3 server is not set up to issue temporary credentials here.
        "stsUnavailable": True,
    },
}
GRANT = {"grant": {"type": "catalog", "privilege": "CATALOG_MANAGE_CONTENT"}}


def main() -> None:
    make_bucket()
    make_catalog(os.environ["POLARIS_URL"])


def make_bucket() -> None:
    store = S3FileSystem(
        endpoint_override=os.environ["S3_URL"],
        region=REGION,
        access_key=os.environ["S3_ACCESS_KEY"],
        secret_key=os.environ["S3_SECRET_KEY"],
        allow_bucket_creation=True,
    )
    store.create_dir(BUCKET)


def make_catalog(url: str) -> None:
    session = requests.Session()
    session.headers["Authorization"] = f"Bearer {token(session, url)}"
    management = f"{url}/api/management/v1"
    made = session.post(f"{management}/catalogs", json={"catalog": CATALOG}, timeout=30)
    if made.status_code != 409:
        made.raise_for_status()
    granted = session.put(
        f"{management}/catalogs/{NAME}/catalog-roles/catalog_admin/grants", json=GRANT, timeout=30
    )
    granted.raise_for_status()


def token(session: requests.Session, url: str) -> str:
    answer = session.post(
        f"{url}/api/catalog/v1/oauth/tokens",
        data={
            "grant_type": "client_credentials",
            "client_id": os.environ["POLARIS_CLIENT_ID"],
            "client_secret": os.environ["POLARIS_CLIENT_SECRET"],
            "scope": "PRINCIPAL_ROLE:ALL",
        },
        timeout=30,
    )
    answer.raise_for_status()
    return str(answer.json()["access_token"])


if __name__ == "__main__":
    main()
