import path from 'node:path'
import type { Db } from '../../platform/db/open.ts'
import type { OwnedFile } from '../../platform/storage/durable-files.ts'
import * as store from './store.ts'
import { exportDir, exportKey, filesOf } from './store.ts'

/** The files of ready exports, with their published hashes. Needed: an export of a deleted model cannot be repeated. */
export async function exportFiles(db: Db): Promise<OwnedFile[]> {
  return (await store.listReady(db)).flatMap((row) =>
    filesOf(row).map(({ name, sha256 }) => ({
      path: path.join(exportDir('', row.id), name),
      key: exportKey(row.id),
      sha256,
      owner: `the export ${row.id}`,
      required: true,
    })),
  )
}
