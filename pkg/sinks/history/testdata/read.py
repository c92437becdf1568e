"""Prints what DuckDB and ClickHouse read of the folder history in the working directory.

usage: read.py FILE...     each with statements for DuckDB, of which the last one returns rows
"""

import sys

import chdb
import duckdb

duckdb.sql("SET TimeZone = 'UTC'")
for path in sys.argv[1:]:
    with open(path, encoding="utf-8") as text:
        for row in duckdb.sql(text.read()).fetchall():
            print("duckdb", *row, sep="|")
print(chdb.query("""
    SELECT 'clickhouse', namespace, name, object FROM file('history/day=*/*.parquet')
    WHERE resource = 'deployments' AND coalesce(changed_at, observed_at) <= '2026-11-28 12:00:50'
      AND type IN ('added', 'updated', 'deleted', 'snapshot', 'sync', 'alive')
    QUALIFY row_number() OVER (PARTITION BY cluster, "group", resource, namespace, name ORDER BY sequence DESC) = 1
      AND type <> 'deleted'
    ORDER BY namespace, name""", "TSVRaw"))
