import path from 'node:path'
import type { DatasetFormat } from '../../contract/datasets.ts'

/** A dataset's files: as it was uploaded, and its rows in the canonical form, which of a jsonl file are the same; and the folder of what is fetched for it. */
export function filesOf(dataDir: string, id: string, format: DatasetFormat) {
  const folder = path.join(dataDir, 'datasets')
  const rows = path.join(folder, `${id}.jsonl`)
  return {
    folder,
    source: format === 'jsonl' ? rows : path.join(folder, `${id}.${format}`),
    rows,
    part: `${rows}.part`,
    fetched: path.join(folder, `${id}.fetched`),
  }
}
