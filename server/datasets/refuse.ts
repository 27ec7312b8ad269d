// What a dataset is refused for.
import type { DatasetFormat } from '../../contract/datasets.ts'
import { ApiError } from '../../contract/errors.ts'
import type { Check } from './rows.ts'

/** A dataset with rows that cannot be trained on. */
export const invalid = (dataset: { id: string; rows: number }, check: Check) =>
  new ApiError(
    'dataset_invalid',
    `${check.error_count} of the dataset's ${dataset.rows} rows cannot be trained on. POST /v1/datasets/${dataset.id}/validate lists them.`,
    { details: { error_count: check.error_count, errors: check.errors.slice(0, 10) } },
  )

/** What cannot be read as lines of text is refused whole; rows that are merely wrong are kept, for validate to tell. */
export function refuseUnreadable(format: DatasetFormat, size_bytes: number, counted: { rows: number; not_utf8_line?: number }, max_rows: number): void {
  if (size_bytes === 0) throw new ApiError('file_empty', 'The file is empty.')
  if (format !== 'jsonl') return
  if (counted.not_utf8_line)
    throw new ApiError('file_not_utf8', `The file is not UTF-8 text (first seen in line ${counted.not_utf8_line}). Save it as UTF-8 and upload it again.`, {
      details: { line: counted.not_utf8_line },
    })
  if (counted.rows === 0) throw new ApiError('file_empty', 'The file has no rows, only blank lines.')
  if (counted.rows > max_rows)
    throw new ApiError('file_too_large', `The file has more than ${max_rows} rows, the most this service takes.`, { details: { max_rows } })
}
