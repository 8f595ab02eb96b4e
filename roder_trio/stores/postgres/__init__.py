"""The store on PostgreSQL: many processes and hosts, each thread owned through a lease."""

try:
    from roder_trio.stores.postgres.store import PostgresThreadStore
except ModuleNotFoundError as error:  # pragma: no cover - the tests have the extra
    if (error.name or "").partition(".")[0] not in {"psycopg", "psycopg_pool"}:
        raise
    raise ModuleNotFoundError(
        "PostgresThreadStore needs psycopg; install roder_trio with its extra: roder_trio[postgres]", name=error.name
    ) from error

__all__ = ["PostgresThreadStore"]
