import path from 'node:path'
import type { Db } from '../../platform/db/open.ts'
import type { OwnedFile } from '../../platform/storage/durable-files.ts'
import * as store from './store.ts'
import { keysOf } from './store.ts'

/** The files of all datasets: each upload, and its canonical rows once they are prepared. */
export async function datasetFiles(db: Db): Promise<OwnedFile[]> {
  return (await store.every(db)).flatMap((dataset) => {
    const { id, sha256, rows_sha256 } = dataset
    const { source, rows } = keysOf(dataset)
    const owner = `the dataset ${id}`
    const file = (name: string, sha256: string) => ({
      path: path.normalize(name),
      key: path.normalize(name),
      sha256,
      owner,
      required: true,
    })
    return rows ? [file(source, sha256), file(rows, rows_sha256!)] : [file(source, sha256)]
  })
}
