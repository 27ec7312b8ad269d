// The tables of this version: in an order in which foreign keys are satisfied, with their keys and columns.
import SQLite from 'better-sqlite3'
import { Kysely, SqliteDialect } from 'kysely'
import { migrate } from '../../platform/db/migrate.ts'
import type { Schema } from '../../platform/db/schema.ts'

export interface Table {
  name: string
  /** Columns that can be inserted, in one order for both databases. */
  columns: string[]
  /** The primary key. */
  key: string[]
  /** The column whose numbers the database gives. */
  counter?: string
  /** Rows that the migrations themselves insert. */
  seeded: number
}

/** Those of running processes, which mean nothing elsewhere, and those that SQLite's triggers fill. */
const leftOut = new Set(['migrations', 'servers', 'periodic_tasks', 'name_scopes', 'name_keys'])

/** Reads the tables from an empty SQLite database, as the migrations make it. */
export async function readTables(): Promise<Table[]> {
  const sqlite = new SQLite(':memory:')
  const db = new Kysely<Schema>({ dialect: new SqliteDialect({ database: sqlite }) })
  try {
    await migrate(db)
    const existing = sqlite
      .prepare(`select name, sql from sqlite_master join pragma_table_list using (name)
        where pragma_table_list.type = 'table' and name not like 'sqlite_%' order by name`)
      .all() as { name: string; sql: string }[]
    const tables = new Map<string, Table & { needs: string[] }>()
    for (const { name, sql } of existing) {
      if (leftOut.has(name)) continue
      const columns = sqlite.pragma(`table_xinfo(${name})`) as { name: string; pk: number; hidden: number }[]
      const key = columns.filter(({ pk }) => pk > 0).sort((a, b) => a.pk - b.pk)
      if (key.length === 0) throw new Error(`the table ${name} has no primary key`)
      const needs = (sqlite.pragma(`foreign_key_list(${name})`) as { table: string }[]).map(({ table }) => table)
      tables.set(name, {
        name,
        columns: columns.filter(({ hidden }) => hidden === 0).map((column) => column.name),
        key: key.map((column) => column.name),
        ...(/\bautoincrement\b/i.test(sql) && { counter: key[0]!.name }),
        seeded: (sqlite.prepare(`select count(*) as count from ${name}`).get() as { count: number }).count,
        needs: needs.filter((need) => need !== name),
      })
    }
    const ordered: Table[] = []
    while (tables.size > 0) {
      const next = [...tables.values()].find(({ needs }) => !needs.some((need) => tables.has(need)))
      if (!next) throw new Error(`the tables ${[...tables.keys()].join(', ')} need each other`)
      const { needs: _, ...table } = next
      ordered.push(table)
      tables.delete(next.name)
    }
    return ordered
  } finally {
    await db.destroy()
  }
}
