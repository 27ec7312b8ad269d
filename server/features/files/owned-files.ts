import path from 'node:path'
import type { Db } from '../../platform/db/open.ts'
import type { OwnedFile } from '../../platform/storage/durable-files.ts'
import * as store from './store.ts'
import { fileKey, filePath } from './store.ts'

/** The files that are no datasets. The parts of unfinished uploads are not backed up: their client sends them again. */
export const uploadedFiles = async (db: Db): Promise<OwnedFile[]> =>
  (await store.every(db)).map(({ id, sha256 }) => ({
    path: path.normalize(filePath('', id)),
    key: fileKey(id),
    sha256,
    owner: `the file ${id}`,
    required: true,
  }))
