"""Gives an embedded database records twice, and prints the state at each moment, the authors, and what was deleted.

usage: ask.py clickhouse|duckdb STATEMENTS RECORDS MOMENT...
"""

import json
import os
import sys
import tempfile


def open_duckdb(statements, records):
    import duckdb

    database = duckdb.connect()
    database.execute(statements)
    database.executemany("INSERT INTO change_records VALUES (?)", [(line,) for line in records])
    return lambda query: database.execute(query).fetchall(), "state_at('{}'::TIMESTAMPTZ)"


def open_clickhouse(statements, records):
    from chdb import session

    database = session.Session()
    for statement in filter(str.strip, statements.split(";\n")):
        database.query(statement)
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "records.jsonl")
        with open(path, "w") as file:
            file.writelines(line + "\n" for line in records)
        database.query(f"INSERT INTO change_records SELECT line FROM file('{path}', 'LineAsString', 'line String')")

    def ask(query):
        return [json.loads(line) for line in str(database.query(query, "JSONCompactEachRow")).splitlines()]

    return ask, "state_at(t = '{}')"


def main():
    dialect, statements, records, *moments = sys.argv[1:]
    with open(statements) as file:
        text = file.read()
    with open(records) as file:
        lines = file.read().splitlines()
    lines = lines[::-1] + lines  # the order does not matter
    ask, at = {"duckdb": open_duckdb, "clickhouse": open_clickhouse}[dialect](text, lines)
    for moment in moments:
        time = moment.replace("T", " ").rstrip("Z") + ("+00" if dialect == "duckdb" else "")
        rows = ask(f"SELECT cluster, resource, namespace, name, resource_version FROM {at.format(time)}")
        print(moment, *sorted("{}/{}/{}/{}@{}".format(*row) for row in rows))
    for row in ask("SELECT author, id FROM who_changed WHERE author <> '' ORDER BY author"):
        print(*row)
    for row in ask("SELECT type, id FROM who_changed WHERE type = 'deleted' ORDER BY id"):
        print(*row)


main()
