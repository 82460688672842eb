"""Make the catalog `demo` in Polaris, unless it is there, and let root manage its content."""

import os

import requests

NAME = "demo"
CATALOG = {
    "name": NAME,
    "type": "INTERNAL",
    "properties": {"default-base-location": "s3://warehouse"},
    "storageConfigInfo": {
        "storageType": "S3",
        "allowedLocations": ["s3://warehouse"],
        "endpoint": "http://s3:8333",
        "pathStyleAccess": True,
        "region": "us-east-1",
        # The S3 server is not set up to issue temporary credentials here.
        "stsUnavailable": True,
    },
}
GRANT = {"grant": {"type": "catalog", "privilege": "CATALOG_MANAGE_CONTENT"}}


def main() -> None:
    url = os.environ["POLARIS_URL"]
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
