import type { Export, ExportFile } from '../../contract/exports.ts'
import type { ExportRow } from './store.ts'

const iso = (time: number | null) => (time === null ? null : new Date(time).toISOString())
const json = (text: string | null) => (text === null ? null : JSON.parse(text))

export const filesOf = (row: Pick<ExportRow, 'files_json'>) => JSON.parse(row.files_json) as ExportFile[]

export function toWire(row: ExportRow): Export {
  const files = filesOf(row)
  return {
    id: row.id,
    status: row.status,
    model: row.model_id,
    format: row.format,
    quantization: row.quantization,
    merge: row.merge === 1,
    archive: row.archive,
    stage: row.stage as Export['stage'],
    progress: row.progress,
    files,
    size_bytes: files.length > 0 ? files.reduce((sum, { size_bytes }) => sum + size_bytes, 0) : null,
    check: json(row.check_json),
    push: json(row.push_json),
    error: json(row.error_json),
    created_at: new Date(row.created_at).toISOString(),
    started_at: iso(row.started_at),
    finished_at: iso(row.finished_at),
    expires_at: iso(row.expires_at),
  }
}
