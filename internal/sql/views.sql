-- Each state of each object, from when to when. after_gap: states before this one may have been lost.
CREATE OR REPLACE VIEW history AS
WITH ordered AS ( -- a restored backup makes versions begin again
  SELECT *, sum(CASE WHEN restored THEN 1 ELSE 0 END) OVER (PARTITION BY cluster, "group", resource ORDER BY observed_at) AS epoch
  FROM changes
), facts AS (
  SELECT * FROM ordered WHERE type IN ('added', 'updated', 'deleted', 'left', 'snapshot', 'sync')
), missing AS ( -- what a whole snapshot lacks does not exist
  SELECT f.cluster AS cluster, f."group" AS "group", f.resource AS resource, f.namespace AS namespace, f.name AS name,
    e.epoch AS epoch, e.read_at AS read_at, e.observed_at AS observed_at
  FROM (SELECT * FROM ordered WHERE type = 'snapshot.end') AS e
  JOIN facts AS f ON f.cluster = e.cluster AND f."group" = e."group" AND f.resource = e.resource
  WHERE e.namespace = '' OR e.namespace = f.namespace
  GROUP BY f.cluster, f."group", f.resource, f.namespace, f.name, e.epoch, e.read_at, e.observed_at, e.snapshot_id
  HAVING max(CASE WHEN f.snapshot_id = e.snapshot_id THEN 1 ELSE 0 END) = 0
), steps AS (
  SELECT cluster, "group", resource, namespace, name, epoch, read_at, observed_at, changed_at, type, uid, resource_version, coalesced,
    after, CASE WHEN type IN ('deleted', 'left') THEN 0 ELSE 1 END AS lives
  FROM facts
  UNION ALL
  SELECT cluster, "group", resource, namespace, name, epoch, read_at, observed_at, observed_at, 'missing', NULL, NULL, true, NULL, 0
  FROM missing
), followed AS (
  SELECT *, lead(observed_at) OVER (PARTITION BY cluster, "group", resource, namespace, name
    ORDER BY epoch, read_at, observed_at, lives) AS next_at
  FROM steps
), timed AS ( -- what changed while the snapshot was read is newer than it, and not missing
  SELECT *, max(changed_at) OVER (PARTITION BY cluster, "group", resource, namespace, name
    ORDER BY epoch, read_at, observed_at, lives ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS valid_from
  FROM followed WHERE type <> 'missing' OR next_at IS NULL OR next_at > observed_at
), spans AS (
  SELECT *, lead(valid_from) OVER (PARTITION BY cluster, "group", resource, namespace, name
    ORDER BY epoch, read_at, observed_at, lives) AS valid_to
  FROM timed
)
SELECT cluster, "group", resource, namespace, name, uid, resource_version, valid_from, valid_to, coalesced AS after_gap,
  after AS object
FROM spans WHERE lives = 1;

-- Each change with its author, where it is known. manager is the name that the writer gave itself.
CREATE OR REPLACE VIEW who_changed AS
SELECT c.changed_at AS changed_at, c.observed_at AS observed_at, c.cluster AS cluster, c."group" AS "group", c.resource AS resource, c.namespace AS namespace,
  c.name AS name, c.type AS type, c.class AS class, coalesce(nullif(c.author, ''), a.author) AS author,
  coalesce(nullif(c.verb, ''), a.verb) AS verb, coalesce(nullif(c.certainty, ''), a.certainty) AS certainty,
  c.manager AS manager, c.changed AS changed, c.before AS before, c.after AS after, c.id AS id
FROM changes AS c
LEFT JOIN (SELECT of_id, max(author) AS author, max(verb) AS verb, max(certainty) AS certainty FROM changes
  WHERE type = 'attributed' GROUP BY of_id) AS a ON a.of_id = c.id
WHERE c.type IN ('added', 'updated', 'deleted');
