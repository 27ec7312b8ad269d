/** Why a move of the data failed, and what to do; for the operator. */
export class MigrateError extends Error {}
