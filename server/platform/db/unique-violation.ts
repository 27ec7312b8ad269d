/** Codes of SQLite and the SQLSTATE of Postgres. */
const codes = new Set(['SQLITE_CONSTRAINT_UNIQUE', 'SQLITE_CONSTRAINT_PRIMARYKEY', '23505'])

/** Whether a statement failed because a row with the same key exists. */
export const isUniqueViolation = (error: unknown): boolean =>
  error instanceof Error && codes.has((error as Error & { code?: string }).code ?? '')
