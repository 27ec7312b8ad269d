import path from 'node:path'
import type { Db } from '../db/open.ts'
import type { Held } from '../storage/durable-files.ts'
import * as store from './store.ts'
import { filesOf } from './store.ts'

/** The files of all datasets: each as it was uploaded, and its rows once they have been made. */
export async function heldByDatasets(db: Db): Promise<Held[]> {
  return (await store.every(db)).flatMap(({ id, format, sha256, rows_sha256 }) => {
    const { source, rows } = filesOf('', id, format)
    const of = `the dataset ${id}`
    const uploaded = { path: path.normalize(source), sha256, of, needed: true }
    return rows_sha256 && rows !== source
      ? [uploaded, { path: path.normalize(rows), sha256: rows_sha256, of, needed: true }]
      : [uploaded]
  })
}
