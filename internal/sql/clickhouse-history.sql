-- The rows of the folder history, each once, of the files that the newest commit lists. Rows of type alive are those that the
-- first file begins with. changed_at is the latest time of the change.
CREATE OR REPLACE VIEW changes AS
WITH files AS (
  SELECT f.path AS path, f.firstSequence AS first FROM (SELECT arrayJoin(files) AS f FROM (SELECT * FROM file('history/manifest/*.json', 'JSONEachRow',
    'version Int64, files Array(Tuple(path String, firstSequence Int64))') ORDER BY version DESC LIMIT 1))
)
SELECT r.* EXCEPT (sequence, "user", attribution, changed_at, day), toNullable(sequence) AS sequence, "user" AS author,
  attribution AS certainty,
  toNullable(coalesce(changed_at, observed_at)) AS changed_at
FROM file('history/day=*/*.parquet') AS r JOIN files ON splitByChar('/', path)[-1] = _file
WHERE type <> 'alive' OR first = (SELECT min(first) FROM files);

-- The text at a JSON path of an object, and the texts at one with [*].
CREATE OR REPLACE FUNCTION text_at AS (object, path) -> JSON_VALUE(object, path);
CREATE OR REPLACE FUNCTION texts_at AS (object, path) -> JSONExtract(JSON_QUERY(ifNull(object, ''), path), 'Array(String)');

{{template "rows.sql"}}
