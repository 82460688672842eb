-- What executors did of a task, slice by slice. A slice that is finished is never done again, and
-- the sum over all of them is how far the task is.

CREATE TABLE task_slices (
    task_id        uuid NOT NULL REFERENCES tasks ON DELETE CASCADE,
    stage          text NOT NULL,
    slice          text NOT NULL,
    -- The version under which it was last begun: whoever begins it anew shuts out the one before.
    version        integer NOT NULL,
    files_done     bigint NOT NULL DEFAULT 0,
    files_missing  bigint NOT NULL DEFAULT 0,
    bytes_done     bigint NOT NULL DEFAULT 0,
    -- Time spent on it: over all slices, more than the time that passes.
    seconds        double precision NOT NULL DEFAULT 0,
    finished       boolean NOT NULL DEFAULT false,
    PRIMARY KEY (task_id, stage, slice)
) WITH (fillfactor = 70);
