-- The rows of the folder history, each once, of the files that the newest commit lists. Rows of type alive are those that the
-- first file begins with. changed_at is the latest time of the change.
CREATE OR REPLACE VIEW changes AS
WITH files AS (
  SELECT f.path AS path, f.firstSequence AS first FROM (SELECT unnest(files) AS f FROM
    (SELECT files FROM read_json('history/manifest/*.json') ORDER BY version DESC LIMIT 1))
)
SELECT r.* EXCLUDE ("user", attribution, changed_at, day, filename), "user" AS author,
  attribution AS certainty,
  coalesce(changed_at, observed_at) AS changed_at
FROM read_parquet('history/day=*/*.parquet', filename = true) AS r JOIN files ON filename = 'history/' || path
WHERE type <> 'alive' OR first = (SELECT min(first) FROM files);

-- The text at a JSON path of an object, and the texts at one with [*].
CREATE OR REPLACE MACRO text_at(object, path) AS json_extract_string(object, path);
CREATE OR REPLACE MACRO texts_at(object, path) AS json_extract_string(object, path);

{{template "rows.sql"}}
