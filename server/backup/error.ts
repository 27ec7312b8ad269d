/** Why there is no backup, or why it is not restored; for the operator, with what to do. */
export class BackupError extends Error {}
