-- The existing objects, one row each, and the offsets read. Both are written in one transaction, so that no record counts twice.
CREATE TABLE IF NOT EXISTS kubernetes_objects (
    topic  text  NOT NULL,
    key    text  NOT NULL, -- cluster/group/resource/namespace/name; the core group is "core"
    object jsonb NOT NULL,
    PRIMARY KEY (topic, key)
);

CREATE TABLE IF NOT EXISTS kubernetes_offsets (
    topic     text   NOT NULL,
    partition int    NOT NULL,
    next      bigint NOT NULL,
    PRIMARY KEY (topic, partition)
);
