import type { Dataset } from '../../contract/datasets.ts'
import type { DatasetRow } from './store.ts'

export const toWire = (dataset: DatasetRow): Dataset => ({
  id: dataset.id,
  name: dataset.name,
  description: dataset.description,
  format: dataset.format,
  status: dataset.status,
  rows: dataset.rows,
  size_mb: Number((dataset.size_bytes / 1e6).toPrecision(4)),
  sha256: dataset.sha256,
  created_at: new Date(dataset.created_at).toISOString(),
})
