-- Every record of the format json once; what edited rules no longer select has left, and was not deleted. read_at is the
-- version of the cluster at which it was read, changed_at the latest time of the change.
CREATE TABLE IF NOT EXISTS changes (
  id text PRIMARY KEY, type text NOT NULL, cluster text NOT NULL, "group" text NOT NULL, resource text NOT NULL,
  namespace text NOT NULL, name text NOT NULL, uid text, resource_version text, read_at numeric,
  observed_at timestamptz NOT NULL, changed_at timestamptz NOT NULL, coalesced boolean NOT NULL, snapshot_id text NOT NULL, class text, manager text, of_id text,
  author text, verb text, certainty text, restored boolean, changed jsonb, before jsonb, after jsonb
);
CREATE INDEX IF NOT EXISTS changes_of_object ON changes (cluster, "group", resource, namespace, name);

-- Text of PostgreSQL has no NUL and no half of a surrogate pair: NUL becomes %00, which no name has, and a half U+FFFD.
-- Escaped backslashes are hidden meanwhile.
CREATE OR REPLACE FUNCTION kubecdc_json(raw text) RETURNS jsonb LANGUAGE sql IMMUTABLE AS $$
SELECT (CASE WHEN raw !~ '\\u(0000|[dD])' THEN raw ELSE
  replace(regexp_replace(regexp_replace(regexp_replace(replace(replace(raw, '\\', chr(1)), '\u0000', '%00'),
    '\\u([dD][89abAB]..)\\u([dD][c-fC-F]..)', chr(2) || '\1\2', 'g'), '\\u[dD][89a-fA-F]..', '\\ufffd', 'g'),
    chr(2) || '(....)(....)', '\\u\1\\u\2', 'g'), chr(1), '\\') END)::jsonb $$;

-- Adds a record: SELECT kubecdc_add('{"id": …}'). One that is there already changes nothing.
CREATE OR REPLACE FUNCTION kubecdc_add(raw text) RETURNS void LANGUAGE sql AS $$
INSERT INTO changes SELECT j->>'id', CASE WHEN j->>'left' = 'true' THEN 'left' ELSE j->>'type' END, j->>'cluster', j->>'group', j->>'resource', coalesce(j->>'namespace', ''),
  coalesce(j->>'name', ''), j->>'uid', j->>'resourceVersion', CASE WHEN v ~ '^[0-9]+$' THEN v::numeric END,
  (j->>'observedAt')::timestamptz, coalesce(j->'changedAt'->>'at', j->>'observedAt')::timestamptz, j ? 'coalesced', coalesce(j->'snapshot'->>'id', ''), j->>'class', j->'actor'->>'manager',
  j->>'of', j->'by'->>'user', j->'by'->>'verb', j->>'certainty',
  CASE WHEN j->'gap'->>'from' ~ '^[0-9]+$' AND j->'gap'->>'to' ~ '^[0-9]+$'
    THEN (j->'gap'->>'to')::numeric < (j->'gap'->>'from')::numeric END,
  j->'changed', j->'before', j->'after'
FROM (SELECT j, coalesce(j->>'listVersion', j->'snapshot'->>'position', j->>'resourceVersion') AS v
  FROM (SELECT kubecdc_json(raw) AS j) AS parsed) AS placed
WHERE j ? 'resource' ON CONFLICT (id) DO NOTHING $$;

{{template "views.sql"}}

-- The objects that existed at a time.
CREATE OR REPLACE FUNCTION state_at(t timestamptz) RETURNS SETOF history LANGUAGE sql STABLE AS $$
SELECT * FROM history WHERE valid_from <= t AND (valid_to > t OR valid_to IS NULL) $$;
