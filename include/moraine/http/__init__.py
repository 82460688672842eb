"""The basis of every HTTP app: authentication, bodies, errors, OpenAPI."""

DELEGATION_PATH = "/delegation-service/api"
