// Uploads of datasets in parts, so that progress can be shown and a broken upload resumes where it stopped.
import { TuneryError } from './errors.ts'
import type { Operations } from './generated/operations.ts'
import type { Columns, Dataset, UploadFieldsInput } from './generated/types.ts'
import type { FileInput, RequestOptions } from './types.ts'

/** What is needed to resume an upload; plain JSON. */
export interface UploadState {
  upload_id: string
  part_ids: string[]
  part_bytes: number
}

export interface UploadProgress {
  sent_bytes: number
  total_bytes: number
  /** Pass it as `resume` to continue after a failure, within an hour. Undefined before the first part has arrived. */
  state: UploadState | undefined
}

export interface UploadOptions extends RequestOptions {
  onProgress?: ((progress: UploadProgress) => void) | undefined
  /** The state of an upload of the same file that did not end. */
  resume?: UploadState | undefined
  /** Size of a part. Smaller files are sent at once. Default 8 MiB. */
  partBytes?: number | undefined
}

/** The fields of an upload. `columns`: of each column that is read, its name in the file. */
export interface DatasetFields extends Omit<UploadFieldsInput, 'columns'> {
  columns?: Columns | undefined
}

const defaultPartBytes = 8 * 1024 * 1024
const partBytesMax = 64 * 1024 * 1024

/** Uploads a file of examples; large files in parts. Errors: those of `POST /datasets/` and `/uploads`. */
export async function uploadDataset(
  api: Operations,
  file: FileInput,
  fields: DatasetFields = {},
  { onProgress, resume, partBytes = defaultPartBytes, ...options }: UploadOptions = {},
): Promise<Dataset> {
  const blob = file instanceof Blob ? file : new Blob([file])
  const total_bytes = blob.size
  const part_bytes = resume?.part_bytes ?? Math.min(partBytes, partBytesMax)
  // Parts carry no format, no columns and no token of a hub: such files are sent at once.
  if (!resume && (total_bytes <= part_bytes || fields.format || fields.columns || fields.hf_token)) {
    onProgress?.({ sent_bytes: 0, total_bytes, state: undefined })
    const { columns, ...others } = fields
    const form = { ...others, ...(columns && { columns: JSON.stringify(columns) }) }
    const dataset = await api.datasets.upload(file, form, options)
    onProgress?.({ sent_bytes: total_bytes, total_bytes, state: undefined })
    return dataset
  }
  const filename = fields.name ?? (file as File).name ?? 'dataset'
  const state = resume ? structuredClone(resume) : await begin()
  const report = () =>
    onProgress?.({ sent_bytes: Math.min(total_bytes, state.part_ids.length * part_bytes), total_bytes, state })
  report()
  for (let start = state.part_ids.length * part_bytes; start < total_bytes; start += part_bytes) {
    const part = await api.uploads.addPart(state.upload_id, blob.slice(start, start + part_bytes), {}, options)
    state.part_ids.push(part.id)
    report()
  }
  const { file: made } = await api.uploads.complete(state.upload_id, { part_ids: state.part_ids }, options)
  if (!made) throw new TypeError('The upload has no file.')
  if (fields.description) return api.datasets.update(made.id, { description: fields.description }, options)
  return api.datasets.get(made.id, options)

  async function begin(): Promise<UploadState> {
    const { id } = await api.uploads.create(
      { filename, bytes: total_bytes, purpose: 'fine-tune', mime_type: 'application/octet-stream' },
      options,
    )
    return { upload_id: id, part_ids: [], part_bytes }
  }
}

export const isUploadGone = (error: unknown) =>
  error instanceof TuneryError && (error.code === 'upload_not_found' || error.code === 'upload_not_pending')
