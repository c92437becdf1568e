-- Each state of each object, from when to when. What a whole list lacks was deleted before it.
CREATE OR REPLACE VIEW history AS
WITH lists AS (
  SELECT cluster, "group", resource, namespace, type, changed_at, sequence, max(CASE WHEN type = 'snapshot.begin' THEN sequence END)
    OVER (PARTITION BY cluster, "group", resource, namespace ORDER BY sequence) AS began
  FROM changes WHERE type IN ('snapshot.begin', 'snapshot.end')
), states AS (
  SELECT *, max(changed_at) OVER (PARTITION BY cluster, "group", resource, namespace, name
    ORDER BY sequence ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS valid_from
  FROM changes WHERE type IN ('added', 'updated', 'deleted', 'left', 'snapshot', 'sync', 'alive')
), spans AS (
  SELECT *, lead(valid_from) OVER (PARTITION BY cluster, "group", resource, namespace, name ORDER BY sequence) AS next_at,
    lead(sequence) OVER (PARTITION BY cluster, "group", resource, namespace, name ORDER BY sequence) AS next
  FROM states
), missing AS (
  SELECT s.sequence AS sequence, min(l.changed_at) AS missing_at
  FROM spans AS s JOIN lists AS l ON l.cluster = s.cluster AND l."group" = s."group" AND l.resource = s.resource
  WHERE l.type = 'snapshot.end' AND (l.namespace = '' OR l.namespace = s.namespace) AND l.began > s.sequence
    AND (s.next IS NULL OR s.next > l.sequence)
  GROUP BY s.sequence
)
SELECT s.cluster AS cluster, s."group" AS "group", s.resource AS resource, s.namespace AS namespace, s.name AS name, s.uid AS uid,
  s.resource_version AS resource_version, s.valid_from AS valid_from, coalesce(m.missing_at, s.next_at) AS valid_to, s.object AS object
FROM spans AS s LEFT JOIN missing AS m ON m.sequence = s.sequence
WHERE s.type NOT IN ('deleted', 'left');

-- Each change with its author, where it is known. manager is the name that the writer gave itself.
CREATE OR REPLACE VIEW who_changed AS
SELECT c.changed_at AS changed_at, c.observed_at AS observed_at, c.cluster AS cluster, c."group" AS "group", c.resource AS resource,
  c.namespace AS namespace, c.name AS name, c.uid AS uid, c.type AS type, coalesce(c.author, a.author) AS author,
  coalesce(c.certainty, a.certainty) AS certainty, c.manager AS manager, c.changed AS changed, c.object AS after
FROM changes AS c LEFT JOIN (
  SELECT cluster, uid, resource_version, sequence, author, certainty FROM changes WHERE type = 'attributed'
  QUALIFY row_number() OVER (PARTITION BY cluster, uid, resource_version ORDER BY sequence DESC) = 1
) AS a ON a.cluster = c.cluster AND a.uid = c.uid AND a.resource_version = c.resource_version AND a.sequence > c.sequence
WHERE c.type IN ('added', 'updated', 'deleted');

-- Each value that an update changed, as JSON.
CREATE OR REPLACE VIEW differences AS
SELECT changed_at, observed_at, cluster, "group", resource, namespace, name, uid, author, certainty, manager, d.path AS path, d."from" AS old, d."to" AS new
FROM (SELECT *, unnest(changed) AS d FROM who_changed) AS c;
