"""Runs the statements of the page, then prints the state at each moment that its input has, one a line.

usage: iceberg.py PAGE TABLE
"""

import os
import sys

page, table = sys.argv[1:]
statements = open(page).read().split("```python tested by TestTheIcebergRecipeTakesHostileRecords\n")[1].split("```")[0]
exec(statements.replace("/tmp/warehouse/history/changes", table))
for moment in sys.stdin.read().split():
    rows = database.execute("SELECT cluster, resource, namespace, name, resource_version FROM state_at(?::TIMESTAMPTZ)", [moment])  # noqa: F821
    print(moment, *sorted("{}/{}/{}/{}@{}".format(*row) for row in rows.fetchall()), sep="\t")
