import path from 'node:path'
import type { Db } from '../db/open.ts'
import type { Held } from '../storage/durable-files.ts'
import * as store from './store.ts'
import { exportDir, filesOf } from './store.ts'

/**
 * The files of the exports that are ready: each was promised with its hash. They can be made again, but not always:
 * their model may be gone.
 */
export async function heldByExports(db: Db): Promise<Held[]> {
  return (await store.ready(db)).flatMap((row) =>
    filesOf(row).map(({ name, sha256 }) => ({
      path: path.join(exportDir('', row.id), name),
      sha256,
      of: `the export ${row.id}`,
      needed: true,
    })),
  )
}
