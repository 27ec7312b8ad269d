import type { Problem } from '../rows.ts'
import type { ToRow } from './columns.ts'

/** One row of a table: where it stands, and the conversation that it makes, or what is wrong with it. */
export type Found = { line: number; row: ReturnType<ToRow> } | { line: number; problem: Problem }
