-- The figures that operations declare, of the tasks that retention has removed. Their names are
-- data, so that the ledger needs no column for each.

CREATE TABLE removed_task_figures (
    task_type  text NOT NULL,
    figure     text NOT NULL,
    total      numeric NOT NULL,
    PRIMARY KEY (task_type, figure)
);

INSERT INTO removed_task_figures (task_type, figure, total)
SELECT task_type, figure, sum(total)
FROM removed_task_totals
    CROSS JOIN LATERAL (VALUES ('files_deleted', files_deleted), ('bytes_deleted', bytes_deleted))
        AS figures (figure, total)
GROUP BY task_type, figure;

ALTER TABLE removed_task_totals DROP COLUMN files_deleted, DROP COLUMN bytes_deleted;
