"""Prints what DuckDB or ClickHouse answers about the folder history in the working directory.

usage: questions.py duckdb|clickhouse VIEWS QUERY...     VIEWS and QUERY are files
"""

import json
import re
import sys


def open_duckdb():
    import duckdb

    database = duckdb.connect()
    database.execute("SET TimeZone = 'UTC'")
    return lambda query: database.execute(query).fetchall()


def open_clickhouse():
    from chdb import session

    database = session.Session()
    return lambda query: [json.loads(line) for line in str(database.query(query, "JSONCompactEachRow")).splitlines()]


def main():
    dialect, views, *queries = sys.argv[1:]
    ask = {"duckdb": open_duckdb, "clickhouse": open_clickhouse}[dialect]()
    with open(views) as file:
        for statement in filter(str.strip, file.read().split(";\n")):
            ask(statement)
    for path in queries:
        with open(path) as file:
            for row in ask(file.read().rstrip(";\n")):
                print(path, *(re.sub(r"^(\d{4}-\S+ \d\d:\d\d:\d\d)[.+].*$", r"\1", str(value)) for value in row), sep="|")


main()
