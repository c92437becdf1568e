-- Records of the format json go in here, one a row. Nothing stays here: kubecdc_in passes them on.
CREATE TABLE IF NOT EXISTS change_records (raw String) ENGINE = Null;

CREATE TABLE IF NOT EXISTS kubecdc_changes (
  id String, type LowCardinality(String), cluster LowCardinality(String), "group" LowCardinality(String),
  resource LowCardinality(String), namespace LowCardinality(String), name String, observed_at DateTime64(9, 'UTC'),
  raw String CODEC(ZSTD(3))
) ENGINE = ReplacingMergeTree ORDER BY (cluster, "group", resource, namespace, name, id);

-- Each half of a surrogate pair becomes U+FFFD: ClickHouse refuses them. Escaped backslashes are hidden meanwhile.
CREATE MATERIALIZED VIEW IF NOT EXISTS kubecdc_in TO kubecdc_changes AS
SELECT JSONExtractString(j, 'id') AS id, if(JSONExtractBool(j, 'left'), 'left', JSONExtractString(j, 'type')) AS type, JSONExtractString(j, 'cluster') AS cluster,
  JSONExtractString(j, 'group') AS "group", JSONExtractString(j, 'resource') AS resource,
  JSONExtractString(j, 'namespace') AS namespace, JSONExtractString(j, 'name') AS name,
  parseDateTime64BestEffort(JSONExtractString(j, 'observedAt'), 9, 'UTC') AS observed_at, j AS raw
FROM (SELECT if(NOT match(raw, '\\\\u[dD]'), raw,
  replaceAll(replaceRegexpAll(replaceRegexpAll(replaceRegexpAll(replaceAll(raw, '\\\\', char(1)),
    '\\\\u([dD][89abAB]..)\\\\u([dD][c-fC-F]..)', concat(char(2), '\\1\\2')), '\\\\u[dD][89a-fA-F]..', '\\\\ufffd'),
    concat(char(2), '(....)(....)'), '\\\\u\\1\\\\u\\2'), char(1), '\\\\')) AS j FROM change_records)
WHERE JSONHas(j, 'resource');

-- Every record once; what edited rules no longer select has left, and was not deleted. read_at is the version of the cluster
-- at which it was read, changed_at the latest time of the change.
CREATE OR REPLACE VIEW changes AS
SELECT id, type, cluster, "group", resource, namespace, name, nullIf(JSONExtractString(raw, 'uid'), '') AS uid,
  nullIf(JSONExtractString(raw, 'resourceVersion'), '') AS resource_version,
  toUInt128OrNull(multiIf(JSONHas(raw, 'listVersion'), JSONExtractString(raw, 'listVersion'), JSONHas(raw, 'snapshot', 'position'),
    JSONExtractString(raw, 'snapshot', 'position'), JSONExtractString(raw, 'resourceVersion'))) AS read_at,
  toNullable(observed_at) AS observed_at, if(JSONHas(raw, 'changedAt'),
    parseDateTime64BestEffort(JSONExtractString(raw, 'changedAt', 'at'), 9, 'UTC'), observed_at) AS changed_at, JSONExtractBool(raw, 'coalesced') = 1 AS coalesced,
  JSONExtractString(raw, 'snapshot', 'id') AS snapshot_id, JSONExtractString(raw, 'class') AS class,
  JSONExtractString(raw, 'actor', 'manager') AS manager, JSONExtractString(raw, 'of') AS of_id,
  JSONExtractString(raw, 'by', 'user') AS author,
  JSONExtractString(raw, 'by', 'verb') AS verb, JSONExtractString(raw, 'certainty') AS certainty,
  ifNull(toUInt128OrNull(JSONExtractString(raw, 'gap', 'to')) < toUInt128OrNull(JSONExtractString(raw, 'gap', 'from')), 0) AS restored,
  JSONExtractRaw(raw, 'changed') AS changed, JSONExtractRaw(raw, 'before') AS before, JSONExtractRaw(raw, 'after') AS after
FROM kubecdc_changes FINAL;

{{template "views.sql"}}

-- The objects that existed at a time.
CREATE OR REPLACE VIEW state_at AS
SELECT * FROM history WHERE valid_from <= {t:DateTime64(9, 'UTC')} AND (valid_to > {t:DateTime64(9, 'UTC')} OR valid_to IS NULL);
