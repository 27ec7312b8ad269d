// Datasets to choose from.
import type { Dataset } from '../../sdk/index.ts'
import { formatTime, plural } from './format.ts'
import { isRepeated } from './names.ts'

type Listed = Pick<Dataset, 'id' | 'name' | 'rows' | 'status' | 'error_count' | 'created_at'>

/** Why a job cannot use it; undefined if one can. */
export const unusable = ({ status, error_count }: Pick<Dataset, 'status' | 'error_count'>): string | undefined =>
  status === 'unreadable'
    ? 'Unreadable file'
    : error_count > 0
      ? `Invalid: ${plural(error_count, 'row')} to fix`
      : undefined

/** An entry of a list. Those with the same name are distinguished by when they were added. */
export function datasetChoice<T extends Listed>(dataset: T, all: readonly { name: string }[], more: string[] = []) {
  const { id, name, rows, status, created_at } = dataset
  const problem = unusable(dataset)
  return {
    value: id,
    label: name,
    note: [
      problem ?? (status === 'preparing' ? 'Reading rows…' : plural(rows, 'row')),
      ...(problem ? [] : more),
      ...(isRepeated(all, dataset) ? [`added ${formatTime(created_at)}`] : []),
    ].join(' · '),
    disabled: problem !== undefined,
  }
}
