-- Records of the format json, one a row.
CREATE TABLE IF NOT EXISTS change_records (raw VARCHAR);

-- JSON in which each half of a surrogate pair is U+FFFD: DuckDB refuses them. Escaped backslashes are hidden meanwhile.
CREATE OR REPLACE MACRO kubecdc_json(raw) AS (CASE WHEN NOT regexp_matches(raw, '\\u[dD]') THEN raw ELSE
  replace(regexp_replace(regexp_replace(regexp_replace(replace(raw, '\\', chr(1)),
    '\\u([dD][89abAB]..)\\u([dD][c-fC-F]..)', chr(2) || '\1\2', 'g'), '\\u[dD][89a-fA-F]..', '\\ufffd', 'g'),
    chr(2) || '(....)(....)', '\\u\1\\u\2', 'g'), chr(1), '\\') END)::JSON;

-- Every record once; what edited rules no longer select has left, and was not deleted. read_at is the version of the cluster
-- at which it was read, changed_at the latest time of the change.
CREATE OR REPLACE VIEW changes AS
SELECT j->>'$.id' AS id, CASE WHEN coalesce(j->>'$.left', '') = 'true' THEN 'left' ELSE j->>'$.type' END AS type, j->>'$.cluster' AS cluster, j->>'$.group' AS "group", j->>'$.resource' AS resource,
  coalesce(j->>'$.namespace', '') AS namespace, coalesce(j->>'$.name', '') AS name, j->>'$.uid' AS uid,
  j->>'$.resourceVersion' AS resource_version,
  TRY_CAST(coalesce(j->>'$.listVersion', j->>'$.snapshot.position', j->>'$.resourceVersion') AS UHUGEINT) AS read_at,
  CAST(j->>'$.observedAt' AS TIMESTAMPTZ) AS observed_at,
  CAST(coalesce(j->>'$.changedAt.at', j->>'$.observedAt') AS TIMESTAMPTZ) AS changed_at, coalesce(j->>'$.coalesced', '') = 'true' AS coalesced,
  coalesce(j->>'$.snapshot.id', '') AS snapshot_id, j->>'$.class' AS class, j->>'$.actor.manager' AS manager,
  j->>'$.of' AS of_id, j->>'$.by.user' AS author, j->>'$.by.verb' AS verb,
  j->>'$.certainty' AS certainty, TRY_CAST(j->>'$.gap.to' AS UHUGEINT) < TRY_CAST(j->>'$.gap.from' AS UHUGEINT) AS restored,
  j->'$.changed' AS changed, j->'$.before' AS before, j->'$.after' AS after
FROM (SELECT kubecdc_json(raw) AS j FROM change_records)
WHERE j->>'$.resource' IS NOT NULL
QUALIFY row_number() OVER (PARTITION BY j->>'$.id' ORDER BY j->>'$.observedAt') = 1;

{{template "views.sql"}}

-- The objects that existed at a time.
CREATE OR REPLACE MACRO state_at(t) AS TABLE
SELECT * FROM history WHERE valid_from <= t AND (valid_to > t OR valid_to IS NULL);
